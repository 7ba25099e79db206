// The 48 bytes in front of everything that gloo sends between two ranks, and the tree along which it broadcasts.
//
// A sender announces (kSendReady), a receiver asks (kReceiveReady), then the bytes follow (kData). The slot names the
// collective: a prefix for its kind and the group's counter.
// Thread safety: values and free functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::collective {

constexpr std::size_t kPreambleBytes = 48;

enum class GlooOp : uint64_t { kBuffer = 0, kData = 1, kSendReady = 2, kReceiveReady = 3 };

struct Preamble {
  uint64_t bytes = 0;  // of the message: this and what follows
  GlooOp op = GlooOp::kBuffer;
  uint64_t slot = 0;
  uint64_t offset = 0;
  uint64_t length = 0;  // of the broadcast
  uint64_t remote_offset = 0;
  bool operator==(const Preamble&) const = default;
};

std::string encode_preamble(const Preamble& preamble);
// kInvalidArgument: an operation that a broadcast has not, or a length that contradicts itself.
Result<Preamble> decode_preamble(std::string_view bytes);

Preamble send_ready(uint64_t slot, uint64_t length);
Preamble receive_ready(uint64_t slot, uint64_t length);
Preamble data_message(uint64_t slot, uint64_t length);

// Of the broadcast that is the group's `count`-th collective, from 0.
uint64_t broadcast_slot(uint32_t count);
// "broadcast 7", for messages.
std::string describe_slot(uint64_t slot);

// From which rank a rank receives (-1: it is the root), and to which it sends, in that sequence.
struct BroadcastTree {
  int parent = -1;
  std::vector<int> children;
};
BroadcastTree broadcast_tree(int rank, int world_size, int root);

}  // namespace millrace::collective
