// Frames that no sender makes: cut off, or with some bytes changed. For tests of the codec.
//
// Thread safety: free functions.
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <string_view>

#include "wire/codec.h"

namespace millrace::wire::testing {

// With one to four bytes replaced.
inline std::string mutated_frame(const std::string& frame, std::mt19937_64& random) {
  std::string mutated = frame;
  for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
    mutated[random() % mutated.size()] = static_cast<char>(random());
  }
  return mutated;
}

inline void expect_truncations_refused(const std::string& frame, std::string_view name) {
  for (std::size_t size = 0; size < frame.size(); ++size) {
    EXPECT_FALSE(decode(std::span(frame.data(), size)).ok()) << name << " cut at " << size;
  }
}

// Truncated ones are refused; mutated ones are refused or decode to a message that encodes.
inline void expect_refused_or_messages(const std::string& frame, std::string_view name, std::mt19937_64& random,
                                       int rounds) {
  expect_truncations_refused(frame, name);
  for (int round = 0; round < rounds; ++round) {
    const auto back = decode(mutated_frame(frame, random));
    if (back.ok()) {
      EXPECT_TRUE(encode(*back).ok()) << name;
    }
  }
}

}  // namespace millrace::wire::testing
