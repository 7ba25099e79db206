#include "stages/loop/detach.h"

#include <cstring>

#include "payload/packing.h"

namespace millrace::loop {
namespace {

void detach(Value& value, int depth) {
  if (depth > kMaxValueDepth) return;
  if (SharedTensor* tensor = value.get<SharedTensor>()) {
    if (tensor->bytes.empty() || tensor->bytes.device() != Device::kHost) return;
    Buffer copy(tensor->bytes.size_bytes());
    std::memcpy(copy.data(), tensor->bytes.data(), copy.size_bytes());
    tensor->bytes = SharedBytes(std::move(copy));
  } else if (ValueList* list = value.get<ValueList>()) {
    for (Value& item : *list) detach(item, depth + 1);
  } else if (ValueMap* map = value.get<ValueMap>()) {
    for (auto& [key, item] : *map) detach(item, depth + 1);
  }
}

}  // namespace

void detach(Value& value) { detach(value, 0); }

}  // namespace millrace::loop
