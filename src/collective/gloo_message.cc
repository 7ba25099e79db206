#include "collective/gloo_message.h"

#include "collective/little_endian.h"

namespace millrace::collective {
namespace {

// gloo/types.h: a slot has the prefix of its kind in the top 8 bits and the collective's tag in the next 32; a
// broadcast leaves the rest 0.
constexpr uint64_t kBroadcastPrefix = 6;
constexpr int kPrefixShift = 56, kCountShift = 24;

}  // namespace

std::string encode_preamble(const Preamble& preamble) {
  std::string out;
  append_int(out, preamble.bytes);
  append_int(out, static_cast<uint64_t>(preamble.op));
  append_int(out, preamble.slot);
  append_int(out, preamble.offset);
  append_int(out, preamble.length);
  append_int(out, preamble.remote_offset);
  return out;
}

Result<Preamble> decode_preamble(std::string_view bytes) {
  CHECK(bytes.size() == kPreambleBytes);
  const auto field = [&](std::size_t i) { return read_int<uint64_t>(bytes, 8 * i); };
  const uint64_t op = field(1);
  // kBuffer is of collectives whose buffers are bound to a slot before; gloo's broadcast is none.
  if (op < 1 || op > 3) return invalid_argument("gloo's operation is {}; wanted 1, 2 or 3", op);
  const Preamble p{field(0), static_cast<GlooOp>(op), field(2), field(3), field(4), field(5)};
  // `bytes` counts what follows as well, and only data has something that follows.
  const uint64_t payload = p.op == GlooOp::kData ? p.length : 0;
  if (p.bytes < kPreambleBytes || p.bytes - kPreambleBytes != payload) {
    return invalid_argument("a message of gloo has {} bytes; wanted {} and {} of payload", p.bytes, kPreambleBytes,
                            payload);
  }
  return p;
}

Preamble send_ready(uint64_t slot, uint64_t length) { return {kPreambleBytes, GlooOp::kSendReady, slot, 0, length, 0}; }

Preamble receive_ready(uint64_t slot, uint64_t length) {
  return {kPreambleBytes, GlooOp::kReceiveReady, slot, 0, length, 0};
}

Preamble data_message(uint64_t slot, uint64_t length) {
  return {kPreambleBytes + length, GlooOp::kData, slot, 0, length, 0};
}

uint64_t broadcast_slot(uint32_t count) {
  return kBroadcastPrefix << kPrefixShift | static_cast<uint64_t>(count) << kCountShift;
}

std::string describe_slot(uint64_t slot) {
  if (slot >> kPrefixShift != kBroadcastPrefix) return fmt::format("a collective of kind {}", slot >> kPrefixShift);
  return fmt::format("broadcast {}", slot >> kCountShift & 0xFFFFFFFF);
}

BroadcastTree broadcast_tree(int rank, int world_size, int root) {
  CHECK(rank >= 0 && rank < world_size && root >= 0 && root < world_size);
  // Ranks are counted from the root. In step i the ranks below 2^i, which have the data, send to those 2^i above them.
  const int self = (rank - root + world_size) % world_size;
  BroadcastTree tree;
  for (int step = 1; step < world_size; step <<= 1) {
    // Ranks of 2 * step and above take part in a later step. Of the others those below the step have the data.
    const int peer = self ^ step;
    if (self >= 2 * step || peer >= world_size) continue;
    const int peer_rank = (peer + root) % world_size;
    if (self < step) {
      tree.children.push_back(peer_rank);
    } else {
      tree.parent = peer_rank;
    }
  }
  return tree;
}

}  // namespace millrace::collective
