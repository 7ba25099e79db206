// PageTables: the page tables of the requests of a chain, as each range has them, so that a step carries only what
// changed. The first range and every other one keep the same tables, because all of them take the same messages in the
// same order; what one forgets, the others forget with the same message.
//
// Owner: a ChainRunner or a RangeServer, on its compute thread. Thread safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/layer_messages.h"

namespace millrace {

inline constexpr uint64_t kKeptMessages = 1024;  // a table that none of so many named is forgotten

class PageTables {
 public:
  // A new epoch: all are empty.
  void clear();
  // Begins the next message; forgets what is old.
  void begin_message();

  // The sender's: sequence.pages is the table of now; it is reduced to what follows the part that the ranges have.
  void reduce(wire::LayerSequence& sequence);
  // The receiver's: the table that the sequence names, kept and new pages, valid until the next call. kInvalidArgument
  // where more pages are kept than there were.
  Result<std::span<const int32_t>> expand(const wire::LayerSequence& sequence);

 private:
  struct Table {
    std::vector<int32_t> pages;
    uint64_t named = 0;  // the message
  };
  uint64_t message_ = 0;
  std::unordered_map<ReqId, Table> tables_;
};

}  // namespace millrace
