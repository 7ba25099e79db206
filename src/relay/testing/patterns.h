// For tests: parts with known bytes, so that any mix-up shows.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/shared_bytes.h"

namespace millrace::relay_testing {

// Byte i of part p of seed s is a function of (s, p, i) alone.
SharedBytes make_part(uint64_t seed, std::size_t part, std::size_t size);
std::vector<SharedBytes> make_parts(uint64_t seed, const std::vector<std::size_t>& sizes);
// "" where the parts have the sizes and bytes of make_parts(seed, sizes); else the first difference.
std::string differs(uint64_t seed, const std::vector<std::size_t>& sizes, const std::vector<SharedBytes>& parts);
// 1 .. max_parts sizes of 0 .. max_bytes, skewed to few and small ones.
std::vector<std::size_t> random_sizes(uint64_t seed, std::size_t max_parts, std::size_t max_bytes);

}  // namespace millrace::relay_testing
