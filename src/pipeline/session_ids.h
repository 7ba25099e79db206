// Numbers that one session of a coordinator gives. Thread safety: a free function.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace millrace {

// The first of one of 2^20 ranges of 2^32 numbers: another range for each session, so that a message to a coordinator
// before this one names nothing of now. Doubles hold integers to 2^53: the numbers stand in traces and metrics, whose
// readers are often JavaScript.
inline uint64_t first_id(uint64_t session) { return ((mix_bits(session) >> 44) << 32) + 1; }

}  // namespace millrace
