// Encodes a message as one bounded msgpack map {0: version, 1: type, 2: body} and back.
//
// decode() trusts nothing: an unknown version, type or field, a wrong type, a missing field, a length over
// wire/limits.h or trailing bytes are kInvalidArgument, and nothing is allocated from a declared length that the frame
// cannot hold. Token ids travel as one bin of little-endian int32.
//
// Thread safety: free functions without state.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace::wire {

// kTooLarge: a field, or the whole, is over a limit that decode() would refuse. Such a message can never be sent.
Result<std::string> encode(const Message& message);
Result<Message> decode(std::span<const char> frame);

}  // namespace millrace::wire
