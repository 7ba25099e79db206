// The files of tests/oracles/payload_trees.py, for the tests and the fuzz target.
//
// Thread safety: a function without state.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wire/messages.h"

namespace millrace::testing {

struct GoldenPayload {
  std::string tree;
  std::vector<wire::TensorInfo> tensors;
  std::vector<uint64_t> part_bytes;
  std::vector<wire::TensorInfo> packed_tensors;  // these two may be absent from a fuzzer's input
  std::string packed;
};

// nullopt: it does not have that form; nothing of it is checked otherwise.
std::optional<GoldenPayload> read_golden(std::span<const char> file);

}  // namespace millrace::testing
