// KvSender: the parts of one transfer at the server that computes (P): which pages to read next, what was sent, and
// what is kept until it was taken. A deterministic state machine without clock, sockets or threads.
//
//   next_run() -> (its bytes are read) -> add() -> next_part(), sent() -> on_taken()
//
// Parts are numbered from 0 in the order of the pages. At most kWindowParts are kept; parts that were not taken can be
// sent again.
//
// Owner: KvExporter. Thread safety: none.
#pragma once

#include <deque>
#include <optional>

#include "wire/transfer_messages.h"

namespace millrace::transfer {

struct PageRun {
  int32_t first = 0;
  int32_t count = 0;
};

class KvSender {
 public:
  // The pages [from, end), at most `part_pages` in a part.
  KvSender(TransferId id, int32_t from, int32_t end, int32_t part_pages);

  // What to read now, where the pages below `cached` are in the cache; nullopt: nothing yet.
  std::optional<PageRun> next_run(int32_t cached) const;
  // The bytes of next_run().
  void add(const PageRun& run, std::string bytes);
  // The part to send now; nullptr: none. It stays the same until sent().
  const wire::KvPart* next_part() const;
  void sent() { ++next_sent_; }
  // kInvalidArgument: more parts than were sent.
  Status on_taken(const wire::KvTaken& taken);

  bool all_read() const { return next_page_ == end_; }
  uint64_t resent() const { return resent_; }

 private:
  const TransferId id_;
  const int32_t end_;
  const int32_t part_pages_;
  int32_t next_page_;              // to read
  std::deque<wire::KvPart> kept_;  // not taken: parts [taken_, taken_ + kept_.size())
  uint32_t taken_ = 0;
  uint32_t next_sent_ = 0;  // number of the part to send next
  uint64_t resent_ = 0;
};

}  // namespace millrace::transfer
