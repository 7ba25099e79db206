// What the replies of all replicas to one command come to. Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace {

// The coordinator has refused the command: no stage has got it.
bool was_refused(const std::vector<wire::AdminReply>& replies);
bool any_ok(const std::vector<wire::AdminReply>& replies);
// The code of the first that failed, and what all that failed reported, but for those that were cancelled because of
// it. A lost replica is no failure where another one is well: it gets the new weights when it joins. One of the first
// `needed` replies is a failure all the same.
Status first_failure(const std::vector<wire::AdminReply>& replies, std::size_t needed = 0);
// All replicas have staged the same bytes. OK: their checksum, 0 where none has one.
Result<uint64_t> same_checksum(const std::vector<wire::AdminReply>& replies);
// Of a version's label.
Status check_label(const std::string& label);

}  // namespace millrace
