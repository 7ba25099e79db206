// Encodes a message as one bounded msgpack map {0: version, 1: type, 2: body} and back.
//
// decode() trusts nothing: an unknown version, type or field, a wrong type, a missing field, a length over
// wire/limits.h, fields that validate() refuses together or trailing bytes are kInvalidArgument (a frame over
// kMaxFrameBytes is kTooLarge), and nothing is allocated from a declared length that the frame cannot hold. Fields may
// come in any order; encode() writes them in that of their numbers. Token ids travel as one bin of little-endian int32.
//
// Thread safety: free functions without state.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "wire/messages.h"

namespace millrace::wire {

// kTooLarge: a field, or the whole, is over a limit that decode() would refuse; kInvalidArgument: validate() refuses
// it. Such a message can never be sent.
Result<std::string> encode(const Message& message);
Result<Message> decode(std::span<const char> frame);

}  // namespace millrace::wire
