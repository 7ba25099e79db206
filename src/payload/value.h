// Value: what travels between the stages of a pipeline, a tree of maps, lists, scalars, strings, bytes and tensors.
//
// The containers belong to the value that holds them and are copied with it; the tensors are immutable and shared
// (tensor/shared_bytes.h). So two values never share anything that may change, however a payload fans out.
// Maps keep the order in which they were made; a key stands in a map once.
//
// Thread safety: a value, as a container of the standard library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tensor/shared_bytes.h"

namespace millrace {

class Value;
using ValueList = std::vector<Value>;
using ValueMap = std::vector<std::pair<std::string, Value>>;

// Bytes inside the tree itself; large ones are better a U8 tensor.
struct ValueBytes {
  std::string bytes;
  friend bool operator==(const ValueBytes&, const ValueBytes&) = default;
};

class Value {
 public:
  using Any =
      std::variant<std::monostate, bool, int64_t, double, std::string, ValueBytes, ValueList, ValueMap, SharedTensor>;

  Value() = default;  // null
  Value(bool v) : any_(v) {}
  Value(int v) : any_(int64_t{v}) {}
  Value(int64_t v) : any_(v) {}
  Value(double v) : any_(v) {}
  Value(const char* v) : any_(std::string(v)) {}
  Value(std::string v) : any_(std::move(v)) {}
  Value(ValueBytes v) : any_(std::move(v)) {}
  Value(ValueList v) : any_(std::move(v)) {}
  Value(ValueMap v) : any_(std::move(v)) {}
  Value(SharedTensor v) : any_(std::move(v)) {}

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(any_);
  }
  // nullptr where it is something else.
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&any_);
  }
  template <typename T>
  T* get() {
    return std::get_if<T>(&any_);
  }
  const Any& any() const { return any_; }

  // Of a map: the value of a key, nullptr where there is none or this is no map.
  const Value* find(std::string_view key) const;
  // Of a map, or of null, which becomes one: sets a key, in place where it stands already. Anything else is a
  // programmer error.
  void set(std::string key, Value value);

 private:
  Any any_;
};

// The same tree with the same bits: tensors by dtype, shape and bytes, numbers bit by bit (so NaN equals itself and
// -0.0 is not 0.0), maps in the same order. Bytes of a device are the same only where they are the very same.
bool same_bits(const Value& a, const Value& b);

// "null", "boolean", "integer", "number", "string", "bytes", "list", "map", "tensor": for messages.
std::string_view kind_name(const Value& value);

}  // namespace millrace
