// Frames of an independent writer (tests/oracles/wire_frames.py), and frames that no sender makes: cut off, or with
// some bytes changed. For tests of the codec.
//
// Thread safety: free functions.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/codec.h"
#include "wire/messages.h"

namespace millrace::wire::testing {

// tests/golden/wire/NAME.msgpack.
inline std::string golden_frame(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/wire/" + name + ".msgpack", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Each message, by the name of its file: encode() writes those bytes, and decode() reads the same message from them.
inline void expect_golden_frames(const std::vector<std::pair<std::string, Message>>& samples) {
  for (const auto& [name, message] : samples) {
    const auto frame = encode(message);
    ASSERT_TRUE(frame.ok()) << name << ": " << frame.status().to_string();
    EXPECT_EQ(*frame, golden_frame(name)) << name;
    const auto back = decode(*frame);
    ASSERT_TRUE(back.ok()) << name << ": " << back.status().to_string();
    EXPECT_EQ(back->index(), message.index()) << name;
    EXPECT_EQ(*encode(*back), *frame) << name;
  }
}

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
