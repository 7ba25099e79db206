// KvReceiver: the parts of one transfer at the server that generates (D): which part comes next, what was written to
// the cache, when to ask again and when to give up. A deterministic state machine without clock, sockets or threads.
//
// A part that is lost or damaged is asked for once more; the second time the transfer fails, and never an answer: what
// was not written is computed.
//
// Owner: KvImporter. Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/page_copy.h"
#include "wire/transfer_messages.h"

namespace millrace::transfer {

class KvReceiver {
 public:
  // Pages [from, end) of `layers` layers, each of which has the same part of a page's bytes.
  KvReceiver(TransferId id, int32_t from, int32_t end, int32_t layers, int64_t page_bytes, int64_t now_ms);

  enum class Part { kWrite, kRepeated, kAskAgain };
  // kWrite: the part's pages, or these layers of them, are next. Errors: it is damaged for the second time, or its
  // numbers are wrong.
  Result<Part> on_part(const wire::KvPart& part, int64_t now_ms);
  // What was kWrite.
  struct Run {
    uint32_t number = 0;  // of the part
    int32_t first_page = 0;
    int32_t pages = 0;
    LayerSpan layers;
    int32_t end() const { return first_page + pages; }
  };
  // The bytes of the first of these parts, the newest, did not come: kAskAgain, and all of them come once more. Its
  // second time is an error.
  Result<Part> on_lost(const std::vector<Run>& newest, const Status& status);
  // The oldest parts that were given out are in the cache.
  void on_written(int parts) { written_ += static_cast<uint32_t>(parts); }

  enum class Due { kNothing, kRenew, kGiveUp };
  // What time asks for now; kRenew: send taken().
  Due due(int64_t now_ms);
  // What D reports now; `again`: as on_part() or due() decided since the last call.
  wire::KvTaken taken(std::string reply_to);

  int32_t end_page() const { return end_; }
  int64_t bytes_of(const wire::KvPart& part) const { return layer_bytes_ * part.layers * part.pages; }
  bool begun() const { return next_ > 0; }  // something has come
  bool complete() const { return next_page_ == end_ && written_ == next_; }

 private:
  bool ask_again();
  Status check(const wire::KvPart& part) const;

  const TransferId id_;
  const int32_t from_;
  const int32_t end_;
  const int32_t all_layers_;
  const int64_t layer_bytes_;     // of one layer of one page
  std::vector<int32_t> layers_;   // of each page from `from_` on: so many first ones have come
  int32_t next_page_;             // those below have all layers
  uint32_t next_ = 0;             // number of the part that is to come
  uint32_t written_ = 0;          // parts
  int64_t progress_ms_;           // when a part came last, or the transfer began
  int64_t renew_ms_;              // when to report next
  int64_t again_ms_;              // when to ask again without having seen a part
  bool again_ = false;            // the next report asks
  bool asked_ = false;            // for part next_
  std::optional<uint32_t> lost_;  // the part whose bytes did not come last
};

}  // namespace millrace::transfer
