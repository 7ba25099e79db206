#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/code_points.h"

namespace millrace::jinja {
namespace {

// Collects text whose punctuation gets its mark at the end, when it is known what stands between it.
class Writer {
 public:
  explicit Writer(Budget& budget) : budget_(budget) {}

  void punctuation(std::string_view text) { write(text); }
  void marked(std::string_view text, bool trusted) {
    any_untrusted_ |= !trusted;
    write(text);
  }

  // Where all strings are trusted so is the punctuation; else text between trusted strings becomes untrusted.
  MarkedString finish() {
    // The steps of write() have paid for the work; this is for the memory of the result.
    budget_.string(text_.size());
    if (!any_untrusted_) return MarkedString(std::move(text_), true);
    MarkedString out;
    size_t at = 0;
    for (const auto& [begin, end] : trusted_strings_) {
      out.append(std::string_view(text_).substr(at, begin - at), false);
      out.append(std::string_view(text_).substr(begin, end - begin), true);
      at = end;
    }
    out.append(std::string_view(text_).substr(at), false);
    return out;
  }

  // Escapes character by character; the trust of a run is that of its escaped bytes. Trusted runs are noted, since only
  // finish() knows whether they stay apart from the punctuation.
  void quoted(const MarkedString& text, void (*escape)(std::string&, uint32_t, bool), bool flag) {
    text.for_each_run(0, text.size(), [&](std::string_view run, bool trusted) {
      std::string escaped;
      for (size_t at = 0; at < run.size();) {
        escape(escaped, next_code_point(run, at), flag);
        // A run grows up to sixfold when it is escaped, so the limit is checked while it grows.
        check_size(escaped.size());
      }
      if (trusted) note_trusted(text_.size(), text_.size() + escaped.size());
      marked(escaped, trusted);
    });
  }

  Budget& budget() { return budget_; }

 private:
  // Before memory is taken: the text of a shared value can be much longer than the value is large.
  void check_size(size_t more) {
    if (text_.size() + more > budget_.limits().max_string_bytes) {
      fail_limit("a string of more than {} bytes", budget_.limits().max_string_bytes);
    }
  }
  void write(std::string_view text) {
    budget_.steps(1 + text.size() / 16);
    check_size(text.size());
    text_ += text;
  }
  void note_trusted(size_t begin, size_t end) {
    if (!trusted_strings_.empty() && trusted_strings_.back().second == begin) {
      trusted_strings_.back().second = end;
    } else {
      trusted_strings_.emplace_back(begin, end);
    }
  }

  Budget& budget_;
  std::string text_;
  bool any_untrusted_ = false;
  std::vector<std::pair<size_t, size_t>> trusted_strings_;
};

// --- repr ---

// In the shortest of Python's three forms.
void append_escape(std::string& out, uint32_t c) {
  if (c < 0x100) {
    out += fmt::format("\\x{:02x}", c);
  } else if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", c);
  } else {
    out += fmt::format("\\U{:08x}", c);
  }
}

// unicode_repr() of CPython: what is not printable is written as an escape.
void repr_escape(std::string& out, uint32_t c, bool single_quotes) {
  if (c == '\\') {
    out += "\\\\";
  } else if (c == (single_quotes ? '\'' : '"')) {
    out += '\\';
    out += static_cast<char>(c);
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (is_printable(c)) {
    append_utf8(out, c);
  } else {
    append_escape(out, c);
  }
}

void repr(Writer& out, const Value& value);

void repr_string(Writer& out, const MarkedString& text) {
  // Python prefers single quotes, unless only those occur inside.
  bool single = text.text().find('\'') == std::string::npos || text.text().find('"') != std::string::npos;
  const char* quote = single ? "'" : "\"";
  out.punctuation(quote);
  out.quoted(text, repr_escape, single);
  out.punctuation(quote);
}

// Recursion over values: their depth is bounded (value.h).
void repr_items(Writer& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.punctuation(", ");
    repr(out, items[i]);
  }
}

void repr_sequence(Writer& out, const Value& value) {
  const auto& sequence = value.as<SequenceObject>();
  if (value.is(Kind::kGenerator)) {
    // Printing does not use the generator up. Python's text has an address, which must not go into a prompt.
    out.punctuation(fmt::format("<{} object>", sequence.label));
    return;
  }
  bool tuple = value.is(Kind::kTuple);
  if (value.is(Kind::kView)) out.punctuation(fmt::format("{}(", sequence.label));
  out.punctuation(tuple ? "(" : "[");
  repr_items(out, sequence.items);
  // (1,) is the tuple, (1) would be a number.
  if (tuple && sequence.items.size() == 1) out.punctuation(",");
  out.punctuation(tuple ? ")" : "]");
  if (value.is(Kind::kView)) out.punctuation(")");
}

void repr_dict(Writer& out, const DictObject& dict) {
  out.punctuation("{");
  bool first = true;
  for (const auto& [key, item] : dict.items()) {
    if (!first) out.punctuation(", ");
    first = false;
    repr(out, key);
    out.punctuation(": ");
    repr(out, item);
  }
  out.punctuation("}");
}

void repr_namespace(Writer& out, const NamespaceObject& object) {
  // Members may refer back to the namespace, so they are not printed; Python prints <Namespace {...}>.
  out.punctuation(fmt::format("<Namespace of {}>", object.members.size()));
}

// Inside of containers: an undefined value prints as nothing only by itself (to_str).
std::string scalar_text(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.as_bool() ? "True" : "False";
    case Kind::kInt:
      return int_to_string(value.as_int());
    case Kind::kFloat:
      return float_repr(value.as_float());
    case Kind::kRange: {
      const auto& range = value.as<RangeObject>();
      std::string text = "range(" + int_to_string(range.start) + ", " + int_to_string(range.stop);
      return text + (range.step == 1 ? ")" : ", " + int_to_string(range.step) + ")");
    }
    case Kind::kFunction:
      return fmt::format("<function {}>", value.as<FunctionObject>().name);
    default:
      return fmt::format("<{} object>", type_name(value));
  }
}

void repr(Writer& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return repr_string(out, value.as_marked());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kGenerator:
      return repr_sequence(out, value);
    case Kind::kDict:
      return repr_dict(out, value.as<DictObject>());
    case Kind::kNamespace:
      return repr_namespace(out, value.as<NamespaceObject>());
    default:
      out.punctuation(scalar_text(value));
  }
}

// --- JSON ---

// json.dumps() of Python, not Jinja's filter for HTML: Hugging Face replaces `tojson` by it for chat templates, so '<'
// and '&' stay as they are, and what is not ASCII too, unless ensure_ascii is set. Then 0x7F is escaped, as Python
// does.
void json_escape(std::string& out, uint32_t c, bool ensure_ascii) {
  if (c == '"' || c == '\\') {
    out += '\\';
    out += static_cast<char>(c);
  } else if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c == '\b') {
    out += "\\b";
  } else if (c == '\f') {
    out += "\\f";
  } else if (c < 0x20 || (ensure_ascii && c == 0x7F)) {
    out += fmt::format("\\u{:04x}", c);
  } else if (!ensure_ascii || c < 0x80) {
    append_utf8(out, c);
  } else if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", c);
  } else {  // a character beyond 16 bits is two surrogates in JSON
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), out_(budget) {}

  MarkedString run(const Value& value) {
    write(value, 0);
    return out_.finish();
  }

 private:
  void string(const MarkedString& text) {
    out_.punctuation("\"");
    out_.quoted(text, json_escape, style_.ensure_ascii);
    out_.punctuation("\"");
  }

  // Separators and indentation come from the template, but it may have made them of the request's data.
  void marked(const MarkedString& text) {
    text.for_each_run(0, text.size(), [this](std::string_view part, bool trusted) {
      if (trusted) {
        out_.punctuation(part);
      } else {
        out_.marked(part, false);
      }
    });
  }

  // As in Python, an indent of "" still puts each item on a line of its own.
  void newline(int level) {
    if (!style_.indent) return;
    out_.punctuation("\n");
    for (int i = 0; i < level; ++i) marked(*style_.indent);
  }

  void separator(bool& first, int level) {
    if (!first) marked(style_.item_separator);
    first = false;
    newline(level);
  }

  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::kNone:
        return out_.punctuation("null");
      case Kind::kBool:
        return out_.punctuation(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return out_.punctuation(int_to_string(value.as_int()));
      case Kind::kFloat:
        return out_.punctuation(number(value.as_float()));
      case Kind::kString:
        return string(value.as_marked());
      case Kind::kList:
      case Kind::kTuple:
        return list(value.as<SequenceObject>().items, level);
      case Kind::kDict:
        return dict(value.as<DictObject>(), level);
      default:
        // The message of an undefined value names the variable, which helps more than its type.
        require_defined(value);
        fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  static std::string number(double value) {
    // No JSON, but what json.dumps() writes.
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void list(const std::vector<Value>& items, int level) {
    if (items.empty()) return out_.punctuation("[]");
    out_.punctuation("[");
    bool first = true;
    for (const Value& item : items) {
      separator(first, level + 1);
      write(item, level + 1);
    }
    newline(level);
    out_.punctuation("]");
  }

  void key(const Value& value) {
    if (value.is_string()) return string(value.as_marked());
    // Python turns these into strings: {1: 2} is {"1": 2}.
    if (!value.is_none() && !value.is_number()) {
      fail("keys must be str, int, float, bool or None, not {}", type_name(value));
    }
    out_.punctuation("\"");
    write(value, 0);
    out_.punctuation("\"");
  }

  void dict(const DictObject& object, int level) {
    if (object.size() == 0) return out_.punctuation("{}");
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : object.items()) items.push_back(&item);
    if (style_.sort_keys) {
      // Keys of types that do not compare fail, as in Python. A NaN among them compares as equal to all, which is no
      // strict weak order: their sequence is then arbitrary.
      std::stable_sort(items.begin(), items.end(), [this](const auto* a, const auto* b) {
        return compare(a->first, b->first, "<", out_.budget()) == -1;
      });
    }
    out_.punctuation("{");
    bool first = true;
    for (const auto* item : items) {
      separator(first, level + 1);
      key(item->first);
      marked(style_.key_separator);
      write(item->second, level + 1);
    }
    newline(level);
    out_.punctuation("}");
  }

  const JsonStyle& style_;
  Writer out_;
};

}  // namespace

MarkedString to_str(const Value& value, Budget& budget) {
  if (value.is_string()) return value.as_marked();
  if (value.is_undefined()) return MarkedString();
  return to_repr(value, budget);
}

MarkedString to_repr(const Value& value, Budget& budget) {
  Writer out(budget);
  repr(out, value);
  return out.finish();
}

// What repr() leaves of characters that are not ASCII is printable, and none of it a quote or a backslash.
MarkedString to_ascii(const Value& value, Budget& budget) {
  const MarkedString text = to_repr(value, budget);
  MarkedString out;
  text.for_each_run(0, text.size(), [&](std::string_view run, bool trusted) {
    std::string escaped;
    for (size_t at = 0; at < run.size();) {
      const uint32_t c = next_code_point(run, at);
      if (c < 0x80) {
        escaped += static_cast<char>(c);
      } else {
        append_escape(escaped, c);
      }
    }
    out.append(escaped, trusted);
  });
  budget.string(out.size());
  return out;
}

MarkedString to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  return JsonWriter(style, budget).run(value);
}

}  // namespace millrace::jinja
