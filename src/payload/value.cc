#include "payload/value.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace millrace {
namespace {

bool same(std::monostate, std::monostate) { return true; }
bool same(bool a, bool b) { return a == b; }
bool same(int64_t a, int64_t b) { return a == b; }
// By bits, so that NaN equals itself and -0.0 differs from 0.0: the value that was sent, and not one that compares
// equal.
bool same(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
bool same(const std::string& a, const std::string& b) { return a == b; }
bool same(const ValueBytes& a, const ValueBytes& b) { return a == b; }

bool same(const SharedTensor& a, const SharedTensor& b) {
  const SharedBytes& x = a.bytes;
  const SharedBytes& y = b.bytes;
  if (a.dtype != b.dtype || !(a.shape == b.shape) || x.size_bytes() != y.size_bytes()) return false;
  // The same block needs no look, and may be where the processor cannot look.
  if (x.empty() || (x.data() == y.data() && x.device() == y.device())) return true;
  if (x.device() != Device::kHost || y.device() != Device::kHost) return false;
  return std::memcmp(x.data(), y.data(), x.size_bytes()) == 0;
}

bool same(const ValueList& a, const ValueList& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

bool same(const ValueMap& a, const ValueMap& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

}  // namespace

const Value* Value::find(std::string_view key) const {
  const auto* map = get<ValueMap>();
  if (!map) return nullptr;
  // In sequence: maps of payloads are small and keep their sequence; an index would cost more to build than it saves.
  for (const auto& [name, value] : *map) {
    if (name == key) return &value;
  }
  return nullptr;
}

void Value::set(std::string key, Value value) {
  if (is<std::monostate>()) any_ = ValueMap{};
  auto* map = get<ValueMap>();
  CHECK(map != nullptr);
  for (auto& [name, old] : *map) {
    if (name == key) {
      old = std::move(value);
      return;
    }
  }
  map->emplace_back(std::move(key), std::move(value));
}

bool same_bits(const Value& a, const Value& b) {
  return std::visit(
      [&](const auto& x) {
        const auto* y = b.get<std::decay_t<decltype(x)>>();
        return y && same(x, *y);
      },
      a.any());
}

std::string_view kind_name(const Value& value) {
  // In the sequence of Value::Any.
  static constexpr std::string_view kNames[] = {"null",  "boolean", "integer", "number", "string",
                                                "bytes", "list",    "map",     "tensor"};
  static_assert(std::size(kNames) == std::variant_size_v<Value::Any>);
  return kNames[value.any().index()];
}

}  // namespace millrace
