#include "stages/loop/detach.h"

#include <algorithm>
#include <cstring>

#include "payload/packing.h"

namespace millrace::loop {
namespace {

template <typename Visit>
void each_tensor(Value& value, int depth, const Visit& visit) {
  if (depth > kMaxValueDepth) return;
  if (SharedTensor* tensor = value.get<SharedTensor>()) {
    if (!tensor->bytes.empty() && tensor->bytes.device() == Device::kHost) visit(*tensor);
  } else if (ValueList* list = value.get<ValueList>()) {
    for (Value& item : *list) each_tensor(item, depth + 1, visit);
  } else if (ValueMap* map = value.get<ValueMap>()) {
    for (auto& [key, item] : *map) each_tensor(item, depth + 1, visit);
  }
}

}  // namespace

void detach(Value& value) {
  each_tensor(value, 0, [](SharedTensor& tensor) {
    Buffer copy(tensor.bytes.size_bytes());
    std::memcpy(copy.data(), tensor.bytes.data(), copy.size_bytes());
    tensor.bytes = SharedBytes(std::move(copy));
  });
}

std::shared_ptr<void> DetachBudget::detach(Body& body) {
  Value* value = std::get_if<Value>(&body);
  return value ? detach(*value) : nullptr;
}

std::shared_ptr<void> DetachBudget::detach(Value& value) {
  std::size_t bytes = 0;
  each_tensor(value, 0, [&bytes](const SharedTensor& tensor) { bytes += tensor.bytes.size_bytes(); });
  if (bytes == 0 || bytes > limit_bytes_ - std::min(limit_bytes_, held_bytes())) return nullptr;
  loop::detach(value);
  held_->fetch_add(bytes, std::memory_order_relaxed);
  return {held_.get(), [held = held_, bytes](void*) { held->fetch_sub(bytes, std::memory_order_relaxed); }};
}

}  // namespace millrace::loop
