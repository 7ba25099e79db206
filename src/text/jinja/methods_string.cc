// The methods of str that give text, lists or positions. The is...() predicates are in methods.cc.
#include <algorithm>

#include "text/jinja/brace_format.h"
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

constexpr Int kMaxWidth = Int{1} << 40;

int64_t clamp_count(Int value) { return value < 0 ? -1 : value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value); }
size_t width_of(Int value) { return value < 0 ? 0 : static_cast<size_t>(value > kMaxWidth ? kMaxWidth : value); }

Value list_of(std::vector<MarkedString> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (MarkedString& part : parts) items.push_back(Value::string(std::move(part)));
  return make_list(std::move(items));
}

template <Ends ends>
Value strip_method(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("strip", arguments, {"chars"});
  MarkedString chars = bound.text(0, "");
  std::optional<std::string_view> set;
  if (bound.given(0)) set = chars.text();
  return Value::string(strip(self.as_marked(), set, ends));
}

template <CaseMap map>
Value case_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("case method", arguments, {});
  evaluator.budget().string(self.as_text().size() * 2);
  return Value::string(map_case(self.as_marked(), map));
}

template <bool from_right>
Value split_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("split", arguments, {"sep", "maxsplit"});
  MarkedString separator = bound.text(0, "");
  std::optional<std::string_view> sep;
  if (bound.given(0)) sep = separator.text();
  if (sep && sep->empty()) fail("empty separator");
  return list_of(split(self.as_marked(), sep, clamp_count(bound.integer(1, -1)), from_right, evaluator.budget()));
}

Value splitlines_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("splitlines", arguments, {"keepends"});
  return list_of(split_lines(self.as_marked(), bound.flag(0, false), evaluator.budget()));
}

template <bool from_right>
Value partition_method(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("partition", arguments, {"sep"}, 1);
  std::string separator = bound.text(0, "").text();
  if (separator.empty()) fail("empty separator");
  const MarkedString& text = self.as_marked();
  size_t at = from_right ? text.text().rfind(separator) : text.text().find(separator);
  Value empty = Value::string("", true);
  if (at == std::string::npos) return from_right ? make_tuple({empty, empty, self}) : make_tuple({self, empty, empty});
  size_t end = at + separator.size();
  return make_tuple({Value::string(text.range(0, at)), Value::string(text.range(at, end)),
                     Value::string(text.range(end, text.size()))});
}

Value replace_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  if (!bound.get(0).is_string() || !bound.get(1).is_string()) fail("replace() wants two strings");
  return Value::string(replace(self.as_marked(), bound.get(0).as_text(), bound.get(1).as_marked(),
                               clamp_count(bound.integer(2, -1)), evaluator.budget()));
}

Value join_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("join", arguments, {"iterable"}, 1);
  std::vector<MarkedString> parts;
  for (const Value& item : iterate(bound.get(0), evaluator.budget())) {
    require_defined(item);
    if (!item.is_string()) fail("join(): item {} is of type {}, wanted a string", parts.size(), type_name(item));
    parts.push_back(item.as_marked());
  }
  return Value::string(join(self.as_marked(), parts, evaluator.budget()));
}

// The bytes [begin, end) of the characters start..stop that find(), count() and startswith() look at; nullopt: beyond
// the end.
std::optional<std::pair<size_t, size_t>> window(const Value& self, const Bound& bound) {
  const std::string& text = self.as_text();
  Int size = static_cast<Int>(count_code_points(text));
  auto clamp = [&](Int value) {
    if (value < 0) value = value + size < 0 ? Int{0} : value + size;
    return value;
  };
  Int start = clamp(bound.integer(1, 0)), stop = std::min(clamp(bound.integer(2, size)), size);
  if (start > size || start > stop) return std::nullopt;
  return std::pair{byte_offset(text, static_cast<size_t>(start)), byte_offset(text, static_cast<size_t>(stop))};
}

template <bool from_right, bool must_exist>
Value find_method_of(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("find", arguments, {"sub", "start", "end"}, 1);
  std::string wanted = bound.text(0, "").text();
  evaluator.budget().steps(self.as_text().size() / 64);
  auto range = window(self, bound);
  size_t at = std::string::npos;
  if (range) {
    std::string_view text = std::string_view(self.as_text()).substr(range->first, range->second - range->first);
    at = from_right ? text.rfind(wanted) : text.find(wanted);
  }
  if (at == std::string::npos) {
    if (must_exist) fail("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(static_cast<Int>(count_code_points(self.as_text().substr(0, range->first + at))));
}

Value count_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("count", arguments, {"sub", "start", "end"}, 1);
  std::string wanted = bound.text(0, "").text();
  evaluator.budget().steps(self.as_text().size() / 64);
  auto range = window(self, bound);
  if (!range) return Value::integer(0);
  std::string_view text = std::string_view(self.as_text()).substr(range->first, range->second - range->first);
  if (wanted.empty()) return Value::integer(static_cast<Int>(count_code_points(text)) + 1);
  Int count = 0;
  for (size_t at = text.find(wanted); at != std::string_view::npos; at = text.find(wanted, at + wanted.size())) ++count;
  return Value::integer(count);
}

template <bool at_end>
Value starts_method(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound(at_end ? "endswith" : "startswith", arguments, {"prefix", "start", "end"}, 1);
  std::vector<Value> wanted = {bound.get(0)};
  if (bound.get(0).is(Kind::kTuple)) wanted = bound.get(0).as<SequenceObject>().items;
  auto range = window(self, bound);
  for (const Value& affix : wanted) {
    require_defined(affix);
    if (!affix.is_string()) {
      fail("{} first arg must be str or a tuple of str, not {}", at_end ? "endswith" : "startswith", type_name(affix));
    }
    if (!range) continue;
    std::string_view text = std::string_view(self.as_text()).substr(range->first, range->second - range->first);
    const std::string& part = affix.as_text();
    if (text.size() < part.size()) continue;
    if (text.substr(at_end ? text.size() - part.size() : 0, part.size()) == part) return Value::boolean(true);
  }
  return Value::boolean(false);
}

template <bool at_end>
Value remove_method(Evaluator&, const Value& self, Arguments& arguments) {
  Bound bound("removeprefix", arguments, {"affix"}, 1);
  std::string affix = bound.text(0, "").text();
  const MarkedString& text = self.as_marked();
  if (text.size() < affix.size()) return self;
  size_t at = at_end ? text.size() - affix.size() : 0;
  if (text.text().compare(at, affix.size(), affix) != 0) return self;
  return Value::string(at_end ? text.range(0, at) : text.range(affix.size(), text.size()));
}

template <Ends ends>
Value pad_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("center", arguments, {"width", "fillchar"}, 1);
  MarkedString fill = bound.text(1, " ");
  if (count_code_points(fill.text()) != 1) fail("The fill character must be exactly one character long");
  return Value::string(pad(self.as_marked(), width_of(bound.integer(0, 0)), ends, fill, evaluator.budget()));
}

Value zfill_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("zfill", arguments, {"width"}, 1);
  const MarkedString& text = self.as_marked();
  size_t sign = !text.empty() && (text.text()[0] == '-' || text.text()[0] == '+') ? 1 : 0;
  MarkedString out = text.range(0, sign);
  size_t width = width_of(bound.integer(0, 0));
  out.append(pad(text.range(sign, text.size()), width < sign ? 0 : width - sign, Ends::kLeft, MarkedString("0", true),
                 evaluator.budget()));
  return Value::string(std::move(out));
}

Value expandtabs_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("expandtabs", arguments, {"tabsize"});
  size_t size = width_of(bound.integer(0, 8)), column = 0;
  const MarkedString& text = self.as_marked();
  MarkedString out;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    uint32_t c = next_code_point(text.text(), at);
    evaluator.budget().steps();
    if (c == '\t') {
      size_t spaces = size == 0 ? 0 : size - column % size;
      evaluator.budget().string(out.size() + spaces);
      out.append(std::string(spaces, ' '), text.trusted_at(begin));
      column += spaces;
    } else {
      out.append_range(text, begin, at);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return Value::string(std::move(out));
}

Value format_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  return Value::string(brace_format(evaluator, self.as_marked(), arguments));
}

Value format_map_method(Evaluator& evaluator, const Value& self, Arguments& arguments) {
  Bound bound("format_map", arguments, {"mapping"}, 1);
  Arguments named;
  if (!bound.get(0).is(Kind::kDict)) fail("format_map() wants a dict, not {}", type_name(bound.get(0)));
  for (const auto& [key, value] : bound.get(0).as<DictObject>().items()) {
    if (key.is_string()) named.named.emplace_back(key.as_text(), value);
  }
  return Value::string(brace_format(evaluator, self.as_marked(), named));
}

constexpr NamedMethod kStringMethods[] = {
    {"strip", strip_method<Ends::kBoth>},
    {"lstrip", strip_method<Ends::kLeft>},
    {"rstrip", strip_method<Ends::kRight>},
    {"upper", case_method<CaseMap::kUpper>},
    {"lower", case_method<CaseMap::kLower>},
    {"title", case_method<CaseMap::kTitle>},
    {"capitalize", case_method<CaseMap::kCapitalize>},
    {"swapcase", case_method<CaseMap::kSwap>},
    {"casefold", case_method<CaseMap::kFold>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines_method},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"replace", replace_method},
    {"join", join_method},
    {"find", find_method_of<false, false>},
    {"rfind", find_method_of<true, false>},
    {"index", find_method_of<false, true>},
    {"rindex", find_method_of<true, true>},
    {"count", count_method},
    {"startswith", starts_method<false>},
    {"endswith", starts_method<true>},
    {"removeprefix", remove_method<false>},
    {"removesuffix", remove_method<true>},
    {"center", pad_method<Ends::kBoth>},
    {"ljust", pad_method<Ends::kRight>},
    {"rjust", pad_method<Ends::kLeft>},
    {"zfill", zfill_method},
    {"expandtabs", expandtabs_method},
    {"format", format_method},
    {"format_map", format_map_method},
};

}  // namespace

Method find_string_method(std::string_view name) {
  const NamedMethod* entry = find_named(kStringMethods, name);
  return entry != nullptr ? entry->method : nullptr;
}

}  // namespace millrace::jinja
