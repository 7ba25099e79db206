#include "text/jinja/slice.h"

#include "base/status.h"
#include "text/jinja/code_points.h"

namespace millrace::jinja {
namespace {

struct Resolved {
  Int start, stop, step;
  Int count() const {
    Int span = step > 0 ? stop - start : start - stop;
    Int stride = step > 0 ? step : -step;
    return span <= 0 ? 0 : (span + stride - 1) / stride;
  }
};

// Clamps the bounds to a sequence of `size` items, as Python's slice.indices() does.
Resolved resolve(const SliceBounds& bounds, Int size) {
  CHECK(size >= 0);
  constexpr Int kFar = Int{1} << 62;
  Int step = bounds.step.value_or(1);
  if (step == 0) fail("slice step cannot be zero");
  step = step > kFar ? kFar : step < -kFar ? -kFar : step;
  Int low = step > 0 ? Int{0} : Int{-1};
  Int high = step > 0 ? size : size - 1;
  auto clamp = [&](std::optional<Int> bound, Int fallback) {
    if (!bound) return fallback;
    Int value = *bound;
    if (value < 0) value = value < -kFar ? low : value + size;
    return value < low ? low : value > high ? high : value;
  };
  return {clamp(bounds.start, step > 0 ? low : high), clamp(bounds.stop, step > 0 ? high : low), step};
}

Value slice_string(const MarkedString& source, const SliceBounds& bounds, Budget& budget) {
  const std::string& text = source.text();
  budget.string(text.size());
  Resolved range = resolve(bounds, static_cast<Int>(count_code_points(text)));
  if (range.step == 1) {
    if (range.stop <= range.start) return Value::string("", true);
    size_t begin = byte_offset(text, static_cast<size_t>(range.start));
    size_t end =
        begin + byte_offset(std::string_view(text).substr(begin), static_cast<size_t>(range.stop - range.start));
    return Value::string(source.range(begin, end));
  }
  std::vector<size_t> starts;
  for (size_t at = 0; at < text.size(); next_code_point(text, at)) starts.push_back(at);
  starts.push_back(text.size());
  MarkedString out;
  Int at = range.start;
  for (Int i = 0, count = range.count(); i < count; ++i, at += range.step) {
    budget.steps();
    out.append_range(source, starts[static_cast<size_t>(at)], starts[static_cast<size_t>(at) + 1]);
  }
  return Value::string(std::move(out));
}

}  // namespace

Value slice_value(const Value& object, const SliceBounds& bounds, Budget& budget) {
  require_defined(object);
  if (object.is_string()) return slice_string(object.as_marked(), bounds, budget);
  if (object.is(Kind::kRange)) {
    const auto& range = object.as<RangeObject>();
    Resolved part = resolve(bounds, range.size);
    // A step beyond the range changes nothing, and must not overflow.
    Int step = part.step > range.size ? range.size + 1 : part.step < -range.size ? -range.size - 1 : part.step;
    return make_range(range.start + part.start * range.step, range.start + part.stop * range.step, step * range.step,
                      budget.limits());
  }
  if (!object.is(Kind::kList) && !object.is(Kind::kTuple)) fail("'{}' object cannot be sliced", type_name(object));
  const auto& items = object.as<SequenceObject>().items;
  Resolved range = resolve(bounds, static_cast<Int>(items.size()));
  Int count = range.count();
  budget.items(static_cast<size_t>(count));
  std::vector<Value> out;
  out.reserve(static_cast<size_t>(count));
  for (Int i = 0; i < count; ++i) out.push_back(items[static_cast<size_t>(range.start + i * range.step)]);
  return make_sequence(object.kind(), std::move(out));
}

std::optional<Value> index_value(const Value& object, Int index) {
  Int size = 0;
  bool list = object.is(Kind::kList) || object.is(Kind::kTuple);
  if (list) {
    size = static_cast<Int>(object.as<SequenceObject>().items.size());
  } else if (object.is(Kind::kRange)) {
    size = object.as<RangeObject>().size;
  } else if (object.is_string()) {
    size = static_cast<Int>(count_code_points(object.as_text()));
  } else {
    return std::nullopt;
  }
  if (index >= size || index < -size) return std::nullopt;
  if (index < 0) index += size;
  if (list) return object.as<SequenceObject>().items[static_cast<size_t>(index)];
  if (object.is(Kind::kRange)) {
    const auto& range = object.as<RangeObject>();
    return Value::integer(range.start + index * range.step);
  }
  const std::string& text = object.as_text();
  size_t begin = byte_offset(text, static_cast<size_t>(index)), end = begin;
  next_code_point(text, end);
  return Value::string(object.as_marked().range(begin, end));
}

}  // namespace millrace::jinja
