// KvSender: the parts of one transfer at the server that computes (P): which pages go next, what was sent, and what was
// taken. A deterministic state machine without clock, sockets or threads.
//
//   next() -> (its bytes are read and offered) -> sent() -> on_taken()
//
// Parts are numbered from 0 in the order of the pages. Cached pages go with all layers. Behind them, the pages that are
// computed now go layer by layer as they are stored, but for the last one, which goes when they are cached: then the
// step that computed them has ended well. At most kWindowParts are sent and not taken; those can be sent again, read
// anew: their pages are leased until the transfer ends.
//
// Owner: KvExporter. Thread safety: none.
#pragma once

#include <deque>
#include <optional>

#include "kv/page_copy.h"
#include "wire/transfer_messages.h"

namespace millrace::transfer {

class KvSender {
 public:
  struct Range {
    int32_t from = 0, end = 0;  // pages
    int32_t layers = 1;         // of each page
    int64_t layer_bytes = 0;    // of one layer of one page
    int64_t least_bytes = 0;    // fewer of layers that are computed now wait for the next layer
  };
  KvSender(TransferId id, Range range);

  // What P has: pages below `cached` with all layers, and those behind, below `stored`, with the first `layers`.
  struct Stored {
    int32_t cached = 0;
    int32_t stored = 0;
    int32_t layers = 0;
  };
  // The part to send now, without bytes and checksum; nullopt: none.
  std::optional<wire::KvPart> next(const Stored& stored);
  // It was.
  void sent(const wire::KvPart& part);
  // kInvalidArgument: more parts than were sent.
  Status on_taken(const wire::KvTaken& taken);

  bool all_sent() const { return next_page_ == range_.end; }
  // Of some pages only the first layers were sent, or are being sent.
  bool half_sent() const { return open_end_ > next_page_; }
  int64_t bytes_of(const wire::KvPart& part) const { return range_.layer_bytes * part.layers * part.pages; }
  uint64_t resent() const { return resent_; }

 private:
  struct Run {
    int32_t first = 0;
    int32_t count = 0;
    LayerSpan layers;
  };
  std::optional<Run> next_run(const Stored& stored);
  Run run_of(int32_t first, int32_t end, LayerSpan layers) const;

  const TransferId id_;
  const Range range_;
  int32_t next_page_;  // those below were sent with all layers
  // Pages [next_page_, open_end_) go layer by layer: those below `open_page_` were sent up to layer band_.end, the
  // others up to band_.begin.
  int32_t open_end_;
  int32_t open_page_;
  LayerSpan band_;
  std::deque<Run> sent_;  // not taken: parts [taken_, taken_ + sent_.size())
  uint32_t taken_ = 0;
  uint32_t next_number_ = 0;  // of the part to send next
  uint64_t resent_ = 0;
};

}  // namespace millrace::transfer
