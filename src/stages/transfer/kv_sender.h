// KvSender: the parts of one transfer at the server that computes (P): which pages go next, what was sent, and what was
// taken. A deterministic state machine without clock, sockets or threads.
//
//   next() -> (its bytes are read and offered) -> sent() -> on_taken()
//
// Parts are numbered from 0 in the order of the pages. At most kWindowParts are sent and not taken; those can be sent
// again, read anew: their pages are leased until the transfer ends.
//
// Owner: KvExporter. Thread safety: none.
#pragma once

#include <deque>
#include <optional>

#include "wire/transfer_messages.h"

namespace millrace::transfer {

class KvSender {
 public:
  // The pages [from, end), at most `part_pages` in a part.
  KvSender(TransferId id, int32_t from, int32_t end, int32_t part_pages);

  // The part to send now, without bytes and checksum, where the pages below `cached` are in the cache; nullopt: none.
  std::optional<wire::KvPart> next(int32_t cached) const;
  // It was.
  void sent(const wire::KvPart& part);
  // kInvalidArgument: more parts than were sent.
  Status on_taken(const wire::KvTaken& taken);

  bool all_sent() const { return next_page_ == end_; }
  uint64_t resent() const { return resent_; }

 private:
  struct PageRun {
    int32_t first = 0;
    int32_t count = 0;
  };

  const TransferId id_;
  const int32_t end_;
  const int32_t part_pages_;
  int32_t next_page_;         // that was never sent
  std::deque<PageRun> sent_;  // not taken: parts [taken_, taken_ + sent_.size())
  uint32_t taken_ = 0;
  uint32_t next_number_ = 0;  // of the part to send next
  uint64_t resent_ = 0;
};

}  // namespace millrace::transfer
