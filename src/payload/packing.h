// Packing: a Value taken apart for its journey and put together again.
//
// The tree goes into one bounded block of msgpack, in which each tensor is an ext of type kTensorExt that holds its
// index in the list of tensors; the tensors' bytes stay where they are. Each is described by {path, dtype, shape, part,
// offset, size}. docs/relay.md has the format byte by byte.
//
//   lift:    Value -> Lifted          nothing is copied but the tree; one part for each distinct block of bytes
//   pack:    Lifted -> one part       where a relay or a user wants one block: offsets aligned to kBufferAlignment,
//                                     padded with zeros
//   restore: tree + infos + parts -> Value     trusts nothing: see below
//
// restore() refuses, with kInvalidArgument that names the path, the value seen and the value wanted: a tree that is not
// ours, too deep or too large; an index out of range, repeated or missing; an unknown dtype; a shape that overflows or
// disagrees with its size; an offset that is unaligned for its dtype, out of range or overlapping another's; a part
// that is not there or has another size than was said. Nothing is allocated from a declared number before it is
// checked.
//
// Thread safety: free functions without state.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "payload/value.h"
#include "wire/messages.h"

namespace millrace {

inline constexpr int kMaxValueDepth = 32;
inline constexpr std::size_t kMaxValueNodes = 1u << 16;  // maps, lists and leaves of one value
inline constexpr std::size_t kMaxValueTensors = 4096;
inline constexpr int kTensorExt = 1;  // the msgpack ext type of a lifted tensor

struct Lifted {
  std::string tree;                       // msgpack, at most wire::kMaxTreeBytes
  std::vector<wire::TensorInfo> tensors;  // in the order of the tree, depth first
  std::vector<SharedBytes> parts;
};

// kTooLarge: over one of the limits above or of wire/limits.h; the message names it. Paths read like "a.b[0].c".
Result<Lifted> lift(const Value& value);

// The same with all tensors in one new part.
Lifted pack(Lifted lifted);

Result<Value> restore(std::string_view tree, const std::vector<wire::TensorInfo>& tensors,
                      const std::vector<SharedBytes>& parts);

}  // namespace millrace
