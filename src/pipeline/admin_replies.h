// What the replies of all replicas to one command come to. Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace {

bool any_ok(const std::vector<wire::AdminReply>& replies);
// The first that failed, by its stage. A replica that is not there is no failure where another one is: it gets the new
// weights when it joins.
Status first_failure(const std::vector<wire::AdminReply>& replies);
// All replicas have staged the same bytes. OK: their checksum, 0 where none has one.
Result<uint64_t> same_checksum(const std::vector<wire::AdminReply>& replies);
// Of a version's label.
Status check_label(const std::string& label);

}  // namespace millrace
