// Truth, equality, ordering, membership, length and iteration, as Python defines them.
#include <cmath>
#include <functional>

#include "text/jinja/code_points.h"
#include "text/jinja/value.h"

namespace millrace::jinja {
namespace {

constexpr int kUnordered = 2;  // a NaN is involved

// Those that are a SequenceObject.
bool is_sequence_kind(Kind kind) {
  return kind == Kind::kList || kind == Kind::kTuple || kind == Kind::kView || kind == Kind::kGenerator;
}

// Exact even where the integer has more bits than a double holds.
int compare_int_float(Int a, double b) {
  if (std::isnan(b)) return kUnordered;
  constexpr double kLimit = 1.7e38;  // about 2**127
  if (b >= kLimit) return -1;
  if (b <= -kLimit) return 1;
  // The conversion is defined: |b| is below 2^127 here. The integer parts are compared first; only where they are equal
  // does the fraction decide.
  Int truncated = static_cast<Int>(b);
  if (a != truncated) return a < truncated ? -1 : 1;
  double rest = b - static_cast<double>(truncated);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

// bool, int and float compare by value, whatever their types are.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  if (a.is_integral()) return compare_int_float(a.as_int(), b.as_float());
  if (b.is_integral()) {
    int result = compare_int_float(b.as_int(), a.as_float());
    return result == kUnordered ? result : -result;
  }
  double x = a.as_float(), y = b.as_float();
  return std::isnan(x) || std::isnan(y) ? kUnordered : x < y ? -1 : x > y ? 1 : 0;
}

// Recursion through equal() is bounded by the depth that values may have. Shared items may be visited many times, so
// equal() charges the budget each time.
bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], budget)) return false;
  }
  return true;
}

// As in Python, without regard to the sequence of the keys.
bool equal_dicts(const DictObject& a, const DictObject& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other, budget)) return false;
  }
  return true;
}

// range(0) == range(5, 2), and range(0, 1) == range(0, 1, 7): ranges are equal where their items are.
bool equal_ranges(const RangeObject& a, const RangeObject& b) {
  if (a.size != b.size) return false;
  return a.size == 0 || (a.start == b.start && (a.size == 1 || a.step == b.step));
}

}  // namespace

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !value.as_marked().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return !value.as<SequenceObject>().items.empty();
    case Kind::kDict:
      return value.as<DictObject>().size() != 0;
    case Kind::kRange:
      return value.as<RangeObject>().size != 0;
    // Generators, macros and the like are true, as Python's objects without __len__ and __bool__ are.
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.steps();
  // Before the kinds are compared: 1 == 1.0 == True. A NaN equals nothing, itself included.
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    // Jinja's Undefined.__eq__: two of them are equal, whatever their names.
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.as_text() == b.as_text();
    case Kind::kList:
    case Kind::kTuple:
      // The shortcut is Python's too: a list with a NaN in it equals itself.
      return a.pointer() == b.pointer() ||
             equal_items(a.as<SequenceObject>().items, b.as<SequenceObject>().items, budget);
    case Kind::kDict:
      return a.pointer() == b.pointer() || equal_dicts(a.as<DictObject>(), b.as<DictObject>(), budget);
    case Kind::kRange:
      return equal_ranges(a.as<RangeObject>(), b.as<RangeObject>());
    // By identity, as Python's objects without __eq__.
    default:
      return a.pointer() == b.pointer();
  }
}

int compare(const Value& a, const Value& b, std::string_view op, Budget& budget) {
  budget.steps();
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_string() && b.is_string()) {
    // UTF-8 sorts bytewise as its code points do.
    int result = a.as_text().compare(b.as_text());
    return result < 0 ? -1 : result > 0 ? 1 : 0;
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto& x = a.as<SequenceObject>().items;
    const auto& y = b.as<SequenceObject>().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      // The first items that differ decide; they may be of types that have no order, which fails.
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], op, budget);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b));
}

size_t hash_key(const Value& key) {
  switch (key.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      // The low 64 bits, of the same number as a float too (below): what is equal has the same hash.
      return std::hash<int64_t>{}(static_cast<int64_t>(key.as_int()));
    case Kind::kFloat: {
      double value = key.as_float();
      // Equal numbers hash alike whatever their type.
      if (value == std::floor(value) && std::fabs(value) < 9e18)
        return std::hash<int64_t>{}(static_cast<int64_t>(value));
      // Beyond 64 bits no fraction is left in a double, so this is the integer itself.
      if (std::isfinite(value) && std::fabs(value) < 1.7e38) {
        return std::hash<int64_t>{}(static_cast<int64_t>(static_cast<Int>(value)));
      }
      return 0;
    }
    case Kind::kString:
      return std::hash<std::string_view>{}(key.as_text());
    case Kind::kTuple: {
      // Tuples share their items, so a few nested ones may stand for billions of values; the weight is known without a
      // visit.
      if (key.as<SequenceObject>().weight > kMaxKeyWeight) {
        fail_limit("a tuple of {} values as a key; the limit is {}", key.as<SequenceObject>().weight, kMaxKeyWeight);
      }
      size_t hash = 17;
      for (const Value& item : key.as<SequenceObject>().items) hash = hash * 31 + hash_key(item);
      return hash;
    }
    case Kind::kList:
    case Kind::kDict:
      fail("unhashable type: '{}'", type_name(key));
    default:
      return static_cast<size_t>(key.kind());
  }
}

// Equality and not identity decides, for each kind of container.
bool contains(const Value& container, const Value& item, Budget& budget) {
  if (container.is_string()) {
    if (!item.is_string()) {
      require_defined(item);
      fail("'in <string>' requires string as left operand, not {}", type_name(item));
    }
    budget.steps(container.as_text().size() / 64 + 1);
    return container.as_text().find(item.as_text()) != std::string::npos;
  }
  // The keys; fails where `item` cannot be one.
  if (container.is(Kind::kDict)) return container.as<DictObject>().find(item) != nullptr;
  if (container.is(Kind::kRange)) {
    if (!item.is_number()) return false;
    const auto& range = container.as<RangeObject>();
    // No arithmetic: a float may be an item too. The limit of a range's items bounds the loop, and the budget is
    // charged.
    for (int64_t i = 0; i < range.size; ++i) {
      budget.steps();
      if (compare_numbers(Value::integer(range.start + i * range.step), item) == 0) return true;
    }
    return false;
  }
  if (container.is(Kind::kGenerator)) {
    // As in Python, the search uses the generator up to the item that it finds.
    auto& generator = container.as<SequenceObject>();
    while (generator.position < generator.items.size()) {
      if (equal(generator.items[generator.position++], item, budget)) return true;
    }
    return false;
  }
  if (is_sequence_kind(container.kind())) {
    for (const Value& candidate : container.as<SequenceObject>().items) {
      if (equal(candidate, item, budget)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  fail("argument of type '{}' is not iterable", type_name(container));
}

size_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return count_code_points(value.as_text());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return value.as<SequenceObject>().items.size();
    case Kind::kDict:
      return value.as<DictObject>().size();
    case Kind::kRange:
      return static_cast<size_t>(value.as<RangeObject>().size);
    default:
      fail("object of type '{}' has no len()", type_name(value));
  }
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::kUndefined:
      return out;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      // Copies are charged: a template that iterates in a loop makes one each time.
      budget.items(value.as<SequenceObject>().items.size());
      return value.as<SequenceObject>().items;
    case Kind::kGenerator: {
      auto& generator = value.as<SequenceObject>();
      out.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.position), generator.items.end());
      // Used up: the next iteration finds nothing.
      generator.position = generator.items.size();
      budget.items(out.size());
      return out;
    }
    case Kind::kDict:
      budget.items(value.as<DictObject>().size());
      for (const auto& [key, item] : value.as<DictObject>().items()) out.push_back(key);
      return out;
    case Kind::kRange: {
      const auto& range = value.as<RangeObject>();
      budget.items(static_cast<size_t>(range.size));
      for (int64_t i = 0; i < range.size; ++i) out.push_back(Value::integer(range.start + i * range.step));
      return out;
    }
    case Kind::kString: {
      const std::string& text = value.as_text();
      budget.items(text.size());
      for (size_t at = 0; at < text.size();) {
        size_t begin = at;
        next_code_point(text, at);
        out.push_back(Value::string(value.as_marked().range(begin, at)));
      }
      return out;
    }
    default:
      fail("'{}' object is not iterable", type_name(value));
  }
}

}  // namespace millrace::jinja
