#include "text/jinja/value.h"

#include <algorithm>

#include "text/jinja/code_points.h"

namespace millrace::jinja {
namespace {

constexpr size_t kIndexedDictSize = 8;  // smaller dicts are searched linearly
constexpr size_t kNotFound = static_cast<size_t>(-1);

// Depth is checked where a value is made, so that no code that visits or destroys one has to count: all of them
// recurse.
int checked_depth(int depth) {
  if (depth > kMaxValueDepth) fail_limit("a value nests more than {} deep", kMaxValueDepth);
  return depth;
}

}  // namespace

Value Value::boolean(bool value) {
  Value out;
  out.kind_ = Kind::kBool;
  out.int_ = value;
  return out;
}

Value Value::integer(Int value) {
  Value out;
  out.kind_ = Kind::kInt;
  out.int_ = value;
  return out;
}

Value Value::real(double value) {
  Value out;
  out.kind_ = Kind::kFloat;
  out.float_ = value;
  return out;
}

Value Value::string(MarkedString text) {
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  return Value::object(Kind::kString, std::move(object));
}

Value Value::undefined(std::string message) {
  auto object = std::make_shared<UndefinedObject>();
  object->message = std::move(message);
  return Value::object(Kind::kUndefined, std::move(object));
}

Value Value::object(Kind kind, std::shared_ptr<Object> object) {
  Value out;
  out.kind_ = kind;
  out.object_ = std::move(object);
  return out;
}

// Python's rule: 1, 1.0 and True are one key. hash_key() gives them the same hash, and equal() decides.
size_t DictObject::index_of(const Value& key) const {
  // Keys are scalars and tuples of them; comparing two costs no more than hashing one, so no budget is charged.
  static const Limits kKeyLimits;
  Budget budget(kKeyLimits);
  if (items_.size() <= kIndexedDictSize) {
    // For its error alone: a small dict refuses an unhashable key as a large one does.
    hash_key(key);
    for (size_t i = 0; i < items_.size(); ++i) {
      if (equal(items_[i].first, key, budget)) return i;
    }
    return kNotFound;
  }
  auto [begin, end] = index_.equal_range(hash_key(key));
  for (auto it = begin; it != end; ++it) {
    if (equal(items_[it->second].first, key, budget)) return it->second;
  }
  return kNotFound;
}

void DictObject::set(const Value& key, Value value) {
  // Before anything changes: this throws where the value nests too deep.
  depth = std::max(depth, checked_depth(std::max(key.depth(), value.depth()) + 1));
  size_t at = index_of(key);
  if (at != kNotFound) {
    items_[at].second = std::move(value);
    return;
  }
  items_.emplace_back(key, std::move(value));
  // The index begins with the entry that makes a search worth it, for all entries so far. Nothing is ever erased, so
  // the positions in it stay good.
  if (items_.size() == kIndexedDictSize + 1) {
    for (size_t i = 0; i < items_.size(); ++i) index_.emplace(hash_key(items_[i].first), i);
  } else if (items_.size() > kIndexedDictSize + 1) {
    index_.emplace(hash_key(key), items_.size() - 1);
  }
}

const Value* DictObject::find(const Value& key) const {
  size_t at = index_of(key);
  return at == kNotFound ? nullptr : &items_[at].second;
}

const Value* DictObject::find(std::string_view key) const {
  // A look-up by name, as attributes and requests' fields are, without making a Value of it. The hash must be the one
  // that hash_key() gives for a string.
  auto matches = [&](const Value& candidate) { return candidate.is_string() && candidate.as_text() == key; };
  if (items_.size() <= kIndexedDictSize) {
    for (const auto& [name, value] : items_) {
      if (matches(name)) return &value;
    }
    return nullptr;
  }
  auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(items_[it->second].first)) return &items_[it->second].second;
  }
  return nullptr;
}

// Linear: the namespaces of real templates have a few members.
const Value* NamespaceObject::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

void NamespaceObject::set(std::string_view name, Value value) {
  for (auto& [key, old] : members) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  members.emplace_back(std::string(name), std::move(value));
}

Value make_sequence(Kind kind, std::vector<Value> items, const char* label) {
  // type_name() and repr() show the label of these two kinds, and of no others.
  CHECK((kind == Kind::kView || kind == Kind::kGenerator) == (label != nullptr));
  auto object = std::make_shared<SequenceObject>();
  // Only tuples count what is inside: other containers are no keys. The sum cannot overflow: a list has at most
  // max_list_items, and each of them counts less than 2^32.
  uint64_t weight = 1;
  for (const Value& item : items) {
    weight += item.is(Kind::kTuple) ? item.as<SequenceObject>().weight : 1;
  }
  object->weight = static_cast<uint32_t>(std::min<uint64_t>(weight, UINT32_MAX));
  // Throws over the limit; the items are still the caller's then.
  object->depth = depth_over(items);
  object->items = std::move(items);
  object->label = label;
  return Value::object(kind, std::move(object));
}

int depth_over(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return checked_depth(depth + 1);
}

Value make_dict(std::shared_ptr<DictObject> dict) { return Value::object(Kind::kDict, std::move(dict)); }

// A bound method holds the object that it is of, so it nests one deeper than that.
Value make_function(std::string name, std::function<Value(Evaluator&, Arguments&)> call, const Value& self) {
  auto object = std::make_shared<FunctionObject>();
  object->depth = checked_depth(self.depth() + 1);
  object->name = std::move(name);
  object->call = std::move(call);
  return Value::object(Kind::kFunction, std::move(object));
}

Value make_range(Int start, Int stop, Int step, const Limits& limits) {
  if (step == 0) fail("range() arg 3 must not be zero");
  // Python's range() has no limits; no template needs larger ones, and the sums below stay inside 128 bits.
  constexpr Int kBound = Int{1} << 100;  // far from overflow in what follows
  if (start > kBound || start < -kBound || stop > kBound || stop < -kBound || step > kBound || step < -kBound) {
    fail_limit("a bound of range() is beyond 2**100");
  }
  Int span = step > 0 ? stop - start : start - stop;
  Int stride = step > 0 ? step : -step;
  // Rounded up: the last step may pass beyond `stop`, which is not part of the range.
  Int size = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (size > limits.max_range_items) fail_limit("range() has too many items; the limit is {}", limits.max_range_items);
  auto object = std::make_shared<RangeObject>();
  object->start = start;
  object->stop = stop;
  object->step = step;
  object->size = static_cast<int64_t>(size);
  return Value::object(Kind::kRange, std::move(object));
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView:
    case Kind::kGenerator:
      return value.as<SequenceObject>().label;
    case Kind::kRange:
      return "range";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
  }
  return "object";
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail("{}", value.undefined_message());
}

}  // namespace millrace::jinja
