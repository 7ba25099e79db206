// A payload's tree, its tensors' descriptions and the sizes of its parts, all made up: restore() must refuse, or give a
// value whose tensors lie inside the parts and that comes back the same from lift() and from pack().
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "payload/packing.h"
#include "payload/testing/golden.h"

namespace {

using namespace millrace;

constexpr uint64_t kMaxPart = 1u << 16;
constexpr std::size_t kMaxAllParts = 1u << 20;

// Copies every tensor's bytes, so that the sanitizer sees one that is not ours.
void touch(const Value& value) {
  if (const auto* list = value.get<ValueList>()) {
    for (const Value& child : *list) touch(child);
  } else if (const auto* map = value.get<ValueMap>()) {
    for (const auto& [key, child] : *map) touch(child);
  } else if (const auto* tensor = value.get<SharedTensor>()) {
    if (tensor->bytes.size_bytes() != tensor->view().size_bytes()) std::abort();
    const std::vector<std::byte> copy(tensor->bytes.span().begin(), tensor->bytes.span().end());
    if (!copy.empty() && copy.back() != tensor->bytes.span().back()) std::abort();
  }
}

void must_come_back(const Value& value, const Lifted& lifted) {
  const auto back = restore(lifted.tree, lifted.tensors, lifted.parts);
  if (!back.ok() || !same_bits(*back, value)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto golden = testing::read_golden({reinterpret_cast<const char*>(data), size});
  if (!golden) return 0;
  std::vector<SharedBytes> parts;
  std::size_t total = 0;
  for (const uint64_t part_bytes : golden->part_bytes) {
    if (part_bytes > kMaxPart || (total += part_bytes) > kMaxAllParts) return 0;
    Buffer part(part_bytes);
    for (std::size_t i = 0; i < part_bytes; ++i) part.data()[i] = static_cast<std::byte>(i * 7);
    parts.emplace_back(std::move(part));
  }
  const auto value = restore(golden->tree, golden->tensors, parts);
  if (!value.ok()) {
    if (value.status().code() != StatusCode::kInvalidArgument) std::abort();
    return 0;
  }
  touch(*value);
  const auto lifted = lift(*value);
  if (!lifted.ok()) std::abort();
  must_come_back(*value, *lifted);
  must_come_back(*value, pack(*lifted));
  return 0;
}
