// Filters on text: trim, upper, replace, join, indent, tojson, ...
#include "text/jinja/builtins.h"
#include "text/jinja/code_points.h"
#include "text/jinja/percent_format.h"
#include "text/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

constexpr Int kMaxWidth = Int{1} << 40;  // beyond every string limit; keeps arithmetic on widths from overflowing

size_t width_of(Int value) { return value < 0 ? 0 : static_cast<size_t>(value > kMaxWidth ? kMaxWidth : value); }

// A string stays the same object, with its marks. `safe` is the same: there is no autoescape.
Value string_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("string", arguments, {});
  return value.is_string() ? value : Value::string(evaluator.str(value));
}

template <CaseMap map>
Value case_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("filter", arguments, {});
  MarkedString text = evaluator.str(value);
  // An estimate: few characters have longer mappings, and map_case() is linear in what it makes.
  evaluator.budget().string(text.size() * 2);
  return Value::string(map_case(text, map));
}

// Words start after space, - ( { [ <, unlike str.title()'s.
Value title_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("title", arguments, {});
  MarkedString text = evaluator.str(value);
  evaluator.budget().string(text.size() * 2);
  MarkedString out;
  auto is_break = [](uint32_t c) { return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<'; };
  // Stretches of separators and of other characters take turns: of each stretch the first character and the rest.
  for (size_t at = 0; at < text.size();) {
    size_t begin = at, first_end = at;
    bool in_break = is_break(next_code_point(text.text(), first_end));
    while (at < text.size()) {
      size_t next = at;
      if (is_break(next_code_point(text.text(), next)) != in_break) break;
      at = next;
    }
    out.append(map_case(text.range(begin, first_end), CaseMap::kUpper));
    out.append(map_case(text.range(first_end, at), CaseMap::kLower));
  }
  return Value::string(std::move(out));
}

Value trim_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("trim", arguments, {"chars"});
  MarkedString chars = bound.text(0, "");
  std::optional<std::string_view> set;
  // None is the default, white space; "" is a set of no characters.
  if (bound.given(0)) set = chars.text();
  MarkedString text = evaluator.str(value);
  return Value::string(strip(text, set, Ends::kBoth));
}

Value replace_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  // Jinja's do_replace(): negative, and None, is all.
  Int count = bound.integer(2, -1);
  MarkedString from = evaluator.str(bound.get(0));
  return Value::string(replace(evaluator.str(value), from.text(), evaluator.str(bound.get(1)),
                               count < 0 ? -1 : static_cast<int64_t>(count > INT64_MAX ? INT64_MAX : count),
                               evaluator.budget()));
}

Value join_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("join", arguments, {"d", "attribute"});
  std::vector<MarkedString> parts;
  for (const Value& item : iterate(value, evaluator.budget())) {
    // Items are converted one by one; join() then adds up their lengths before it allocates.
    parts.push_back(evaluator.str(bound.given(1) ? attribute_path(evaluator, item, bound.get(1)) : item));
  }
  MarkedString separator = bound.has(0) ? evaluator.str(bound.get(0)) : MarkedString();
  return Value::string(join(separator, parts, evaluator.budget()));
}

Value center_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("center", arguments, {"width"});
  return Value::string(pad(evaluator.str(value), width_of(bound.integer(0, 80)), Ends::kBoth, MarkedString(" ", true),
                           evaluator.budget()));
}

// do_indent() of Jinja. It adds a line end to the text, so that splitlines() gives a last, empty line where the text
// ends with one.
Value indent_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("indent", arguments, {"width", "first", "blank"});
  require_defined(value);
  if (!value.is_string()) fail("indent: the value is of type {}, wanted a string", type_name(value));
  MarkedString indention;
  if (bound.given(0) && bound.get(0).is_string()) {
    indention = bound.get(0).as_marked();
  } else {
    size_t width = width_of(bound.integer(0, 4));
    // Before the string is made: width_of() allows any width.
    evaluator.budget().repeated_string(1, width);
    indention = MarkedString(std::string(width, ' '), true);
  }
  bool first = bound.flag(1, false), blank = bound.flag(2, false);
  MarkedString text = value.as_marked();
  text.append("\n", true);
  MarkedString out;
  std::vector<MarkedString> lines = split_lines(text, false, evaluator.budget());
  for (size_t i = 0; i < lines.size(); ++i) {
    evaluator.budget().string(lines[i].size() + indention.size() + 1);
    // Each line is charged above; this bounds their sum: a wide indention makes many short lines long.
    if (out.size() > evaluator.budget().limits().max_string_bytes) fail_limit("indent: the text grows over the limit");
    if (i > 0) out.append("\n", true);
    // The first line only with `first`; an empty one only with `blank`.
    if (i == 0 ? first : (blank || !lines[i].empty())) out.append(indention);
    out.append(lines[i]);
  }
  return Value::string(std::move(out));
}

Value escape_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("escape", arguments, {});
  MarkedString text = evaluator.str(value);
  // The longest entities have five characters.
  evaluator.budget().string(text.size() * 5);
  MarkedString out;
  text.for_each_run(0, text.size(), [&](std::string_view run, bool trusted) {
    for (char c : run) {
      // The entities of markupsafe.escape().
      const char* entity = c == '&'    ? "&amp;"
                           : c == '<'  ? "&lt;"
                           : c == '>'  ? "&gt;"
                           : c == '\'' ? "&#39;"
                           : c == '"'  ? "&#34;"
                                       : nullptr;
      out.append(entity != nullptr ? std::string_view(entity) : std::string_view(&c, 1), trusted);
    }
  });
  return Value::string(std::move(out));
}

Value wordcount_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("wordcount", arguments, {});
  MarkedString text = evaluator.str(value);
  Int words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    uint32_t c = next_code_point(text.text(), at);
    // \w of Python's re.
    bool word = c == '_' || is_alpha(c) || is_numeric(c);
    words += word && !inside;
    inside = word;
  }
  return Value::integer(words);
}

// do_truncate() of Jinja: `length` counts `end` too, and a text that is longer by no more than `leeway` stays.
Value truncate_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  size_t length = width_of(bound.integer(0, 255)), leeway = width_of(bound.integer(3, 5));
  MarkedString end = bound.text(2, "...");
  size_t end_length = count_code_points(end.text());
  if (length < end_length) fail("truncate: the length is {}, wanted at least {}", length, end_length);
  if (millrace::jinja::length(value) <= length + leeway) return value;
  if (!value.is_string()) fail("truncate: the value is of type {}, wanted a string", type_name(value));
  const MarkedString& text = value.as_marked();
  MarkedString kept = text.range(0, byte_offset(text.text(), length - end_length));
  if (!bound.flag(1, false)) {
    // Without killwords the last word goes, which may be cut in half; a text of one word keeps its part.
    size_t space = kept.text().rfind(' ');
    if (space != std::string::npos) kept.truncate(space);
  }
  evaluator.budget().string(kept.size() + end.size());
  kept.append(end);
  return Value::string(std::move(kept));
}

Value format_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  // do_format(): `pattern % args` with a tuple, or with a dict.
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes positional or keyword arguments, not both");
  }
  Value values = make_tuple(arguments.positional);
  if (!arguments.named.empty()) {
    auto dict = std::make_shared<DictObject>();
    for (auto& [name, item] : arguments.named) dict->set(Value::string(name, true), item);
    values = make_dict(std::move(dict));
  }
  return Value::string(percent_format(evaluator.str(value), values, evaluator.budget()));
}

Value tojson_filter(Evaluator& evaluator, const Value& value, Arguments& arguments) {
  Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  // The signature is that of Hugging Face's tojson for chat templates, not of Jinja's own: see json_escape().
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.given(1)) {
    if (bound.get(1).is_string()) {
      style.indent = bound.get(1).as_marked();
    } else {
      size_t width = width_of(bound.integer(1, 0));
      evaluator.budget().repeated_string(1, width);
      style.indent = MarkedString(std::string(width, ' '), true);
    }
    // As json.dumps() does where there is an indent: lines do not end with a space.
    style.item_separator = MarkedString(",", true);
  }
  if (bound.given(2)) {
    std::vector<Value> separators = iterate(bound.get(2), evaluator.budget());
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      fail("tojson: separators has {} items, wanted two strings", separators.size());
    }
    style.item_separator = separators[0].as_marked();
    style.key_separator = separators[1].as_marked();
  }
  return Value::string(to_json(value, style, evaluator.budget()));
}

constexpr NamedFilter kTextFilters[] = {
    {"string", string_filter},
    {"safe", string_filter},
    {"upper", case_filter<CaseMap::kUpper>},
    {"lower", case_filter<CaseMap::kLower>},
    {"capitalize", case_filter<CaseMap::kCapitalize>},
    {"title", title_filter},
    {"trim", trim_filter},
    {"replace", replace_filter},
    {"join", join_filter},
    {"center", center_filter},
    {"indent", indent_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"forceescape", escape_filter},
    {"wordcount", wordcount_filter},
    {"truncate", truncate_filter},
    {"format", format_filter},
    {"tojson", tojson_filter},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  const NamedFilter* entry = find_named(kTextFilters, name);
  return entry != nullptr ? entry->filter : nullptr;
}

}  // namespace millrace::jinja
