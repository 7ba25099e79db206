// The values a template computes with, behaving as Python's do.
//
// A Value is a handle; what it points to is immutable, except the stateful objects that Jinja itself has: namespaces,
// generators (consumed by one iteration), cyclers, joiners and the loop variable. Those belong to one render.
// Text is UTF-8 with marks (marked_string.h). Integers have 128 bits; overflow is an error, where Python would go on.
//
// Thread safety: values without stateful objects (literals of the template, the request's data) may be shared by
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"
#include "text/jinja/marked_string.h"

namespace millrace::jinja {

class Evaluator;
class Value;
struct Arguments;

using Int = __int128;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,       // dict.keys(), values(), items()
  kGenerator,  // what map, select and their kin return: one iteration consumes it
  kRange,
  kNamespace,
  kFunction,  // globals and bound methods
  kMacro,
  kLoop,
  kCycler,
  kJoiner,
};

inline constexpr uint32_t kMaxKeyWeight = 1000;

// What Value::object points to; the kind gives its class.
struct Object {
  virtual ~Object() = default;
  // How deep values nest from here down (lists in lists, a bound method's list...). Bounded by kMaxValueDepth, so that
  // neither a visit nor a destructor recurses further. Namespaces and macros count 0: the evaluator owns them.
  int depth = 0;
};

struct StringObject : Object {
  MarkedString text;
};

struct UndefinedObject : Object {
  std::string message;  // "'x' is undefined"
};

class Value {
 public:
  Value() : kind_(Kind::kNone), int_(0) {}
  static Value none() { return Value(); }
  static Value boolean(bool value);
  static Value integer(Int value);
  static Value real(double value);
  static Value string(MarkedString text);
  static Value string(std::string text, bool trusted) { return string(MarkedString(std::move(text), trusted)); }
  static Value undefined(std::string message);
  static Value object(Kind kind, std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_integral() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }  // Python's bool is an int

  // Each requires the matching kind.
  bool as_bool() const { return int_ != 0; }
  Int as_int() const { return int_; }  // also of a bool
  double as_float() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const MarkedString& as_marked() const { return static_cast<const StringObject&>(*object_).text; }
  const std::string& as_text() const { return as_marked().text(); }
  const std::string& undefined_message() const { return static_cast<const UndefinedObject&>(*object_).message; }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& pointer() const { return object_; }

  int depth() const { return object_ ? object_->depth : 0; }

 private:
  Kind kind_;
  union {
    Int int_;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

// Lists, tuples, dict views, generators.
struct SequenceObject : Object {
  std::vector<Value> items;
  uint32_t weight = 1;          // values in it, shared ones counted each time, saturating: bounds hashing
  size_t position = 0;          // generators: the next item to hand out
  const char* label = nullptr;  // views and generators: Python's type name
  bool is_group = false;        // tuples made by groupby have .grouper and .list
};

// Insertion-ordered, keys compare as in Python (1 == 1.0 == True).
class DictObject : public Object {
 public:
  // Keeps the position of an existing key. Fails for keys that Python cannot hash.
  void set(const Value& key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  DictObject() { depth = 1; }

 private:
  size_t index_of(const Value& key) const;

  std::vector<std::pair<Value, Value>> items_;
  std::unordered_multimap<size_t, size_t> index_;  // hash of the key -> position
};

struct RangeObject : Object {
  Int start = 0, stop = 0, step = 1;
  int64_t size = 0;
};

struct NamespaceObject : Object {
  std::vector<std::pair<std::string, Value>> members;
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

struct FunctionObject : Object {
  std::string name;
  std::function<Value(Evaluator&, Arguments&)> call;
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool used = false;
};

// Makers. `items` must not nest deeper than kMaxValueDepth: fails with kTooLarge otherwise.
Value make_sequence(Kind kind, std::vector<Value> items, const char* label = nullptr);
inline Value make_list(std::vector<Value> items) { return make_sequence(Kind::kList, std::move(items)); }
inline Value make_tuple(std::vector<Value> items) { return make_sequence(Kind::kTuple, std::move(items)); }
inline Value make_generator(std::vector<Value> items) {
  return make_sequence(Kind::kGenerator, std::move(items), "generator");
}
// The depth of an object that holds these values; fails with kTooLarge over the limit.
int depth_over(const std::vector<Value>& items);
Value make_dict(std::shared_ptr<DictObject> dict);
// `self`: what a bound method holds.
Value make_function(std::string name, std::function<Value(Evaluator&, Arguments&)> call, const Value& self = Value());
// Fails for step 0 and for more than the limit's items.
Value make_range(Int start, Int stop, Int step, const Limits& limits);

const char* type_name(const Value& value);  // Python's: "str", "NoneType", "dict"

// Python's semantics. Each charges the budget, for shared sub-values may be visited many times.
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
// -1, 0, 1; fails for types that have no order. `op` ("<") stands in the message. NaN compares as 2.
int compare(const Value& a, const Value& b, std::string_view op, Budget& budget);
// Fails for unhashable types and for tuples of more than kMaxKeyWeight values.
size_t hash_key(const Value& key);
bool contains(const Value& container, const Value& item, Budget& budget);

// len(), or fails.
size_t length(const Value& value);
// All items of an iterable, a generator's remaining ones; fails for what cannot be iterated.
std::vector<Value> iterate(const Value& value, Budget& budget);

// Fails with the message of the undefined value, when it is one.
void require_defined(const Value& value);

}  // namespace millrace::jinja
