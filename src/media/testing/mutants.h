// Seeded damage to files, for tests that give decoders what no encoder makes.
// Thread safety: free functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace millrace {

using Bytes = std::vector<uint8_t>;

struct Draw {
  uint64_t state;

  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : mix_bits(state++) % limit; }
};

inline void mutate_once(Bytes& bytes, std::size_t range, Draw& draw) {
  if (bytes.empty()) return;
  const std::size_t at = draw.below(std::min(range, bytes.size()));
  const auto here = bytes.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t left = bytes.size() - at;
  switch (draw.below(7)) {
    case 0:
      bytes[at] ^= static_cast<uint8_t>(1u << draw.below(8));
      break;
    case 1:
      bytes[at] = static_cast<uint8_t>(draw.below(256));
      break;
    case 2:  // an extreme field
      std::fill_n(here, std::min<std::size_t>(left, 1 + draw.below(4)), draw.below(2) == 0 ? 0xFF : 0);
      break;
    case 3:
      bytes.erase(here, here + static_cast<std::ptrdiff_t>(std::min<std::size_t>(left, 1 + draw.below(60))));
      break;
    case 4:
      bytes.insert(here, 1 + draw.below(20), static_cast<uint8_t>(draw.below(256)));
      break;
    case 5: {  // a part of the file once more
      const Bytes part(here, here + static_cast<std::ptrdiff_t>(std::min<std::size_t>(left, 1 + draw.below(300))));
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(draw.below(bytes.size())), part.begin(), part.end());
      break;
    }
    default:
      if (draw.below(4) == 0) bytes.resize(bytes.size() - draw.below(left));
  }
}

// Half of the mutants are damaged in their header alone.
inline Bytes mutant_of(const Bytes& original, Draw& draw) {
  Bytes bytes = original;
  const std::size_t range = draw.below(2) == 0 ? 300 : bytes.size();
  for (std::size_t i = 1 + draw.below(6); i > 0; --i) mutate_once(bytes, range, draw);
  return bytes;
}

}  // namespace millrace
