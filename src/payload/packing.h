// Packing: a Value taken apart for its journey and put together again.
//
// The tree goes into one bounded block of msgpack, in which each tensor is an ext of type kTensorExt that holds its
// index in the list of tensors (4 bytes, big-endian); the tensors' bytes stay where they are. Each is described by
// {path, dtype, shape, part, offset, size}. docs/wire-protocol.md has the format byte by byte.
//
//   lift:    Value -> Lifted          nothing is copied but the tree; one part for each distinct block of bytes
//   pack:    Lifted -> one part       where a relay or a user wants one block: parts aligned to kBufferAlignment,
//                                     the space between them filled with zeros
//   restore: tree + infos + parts -> Value     trusts nothing: see below
//
// Tensors that view the same block (the same address and size) share one part and come back sharing it; blocks that
// only overlap are parts of their own, so a byte may travel twice but is never confused. A tensor without bytes (an
// extent of 0) belongs to no part: its part and offset are 0. A payload whose tensors are all empty has no parts.
//
// restore() refuses, with kInvalidArgument that names the path, the value seen and the value wanted: a tree that is not
// ours (an unknown ext, an integer that does not fit int64, a string or key that is not UTF-8, a key twice in a map,
// bytes after the end), too deep or too large; an index out of range, repeated or missing; a path that is not where the
// tensor stands; an unknown dtype; a shape of more than kMaxDims extents, with a negative one, or that overflows or
// disagrees with its size; bytes that are unaligned for their dtype, out of range of their part, or overlap another
// tensor's without being the very same range; a part that is not there or that no tensor uses. Whether the parts have
// the sizes that the message has (wire::Payload::part_bytes) is for their receiver to check: GetRequest::sizes. Nothing
// is allocated from a declared number before it is checked; the message is UTF-8 and short, whatever was sent.
//
// lift() refuses what restore() would: kTooLarge over a limit; kInvalidArgument for a string or key that is not UTF-8,
// a key twice in a map, a tensor whose bytes disagree with its shape or are unaligned for its dtype.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "payload/value.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kMaxValueDepth = 32;                // containers around a leaf
inline constexpr std::size_t kMaxValueNodes = 1u << 16;  // maps, lists and leaves of one value; keys do not count
inline constexpr std::size_t kMaxValueTensors = 4096;    // = wire::kMaxTensors
inline constexpr int kTensorExt = 1;                     // the msgpack ext type of a lifted tensor

struct Lifted {
  std::string tree;                       // msgpack, at most wire::kMaxTreeBytes
  std::vector<wire::TensorInfo> tensors;  // in the order of the tree, depth first
  std::vector<SharedBytes> parts;
};

// Errors as above. Paths read like "a.b[0].c", the root's is empty; keys stand in them as they are, so a path shows
// people where, and is compared, never taken apart.
Result<Lifted> lift(const Value& value);

// The same with all tensors in one new part. With one part, or none, it is already so and stays as it is. The parts
// must be host memory.
Lifted pack(Lifted lifted);

// The tensors of the value are slices of `parts`, with their owners: nothing is copied but the tree.
Result<Value> restore(std::string_view tree, const std::vector<wire::TensorInfo>& tensors,
                      const std::vector<SharedBytes>& parts);

}  // namespace millrace
