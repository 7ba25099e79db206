// Small tensors inside of the message: parts of at most wire::kMaxInlineBytes together need no relay, so neither a put
// nor a get nor a credit.
//
// Thread safety: free functions without state.
#pragma once

#include <vector>

#include "base/status.h"
#include "payload/value.h"
#include "wire/pipeline_messages.h"

namespace millrace {

// Fills part_bytes, and inline_bytes where the parts are small and in host memory. False: a relay must carry them.
bool put_inline(const std::vector<SharedBytes>& parts, wire::Payload& payload);

// The value of a payload that is not in a relay. As restore(); kInvalidArgument also where inline_bytes has another
// size than the parts.
Result<Value> restore_inline(const wire::Payload& payload);

}  // namespace millrace
