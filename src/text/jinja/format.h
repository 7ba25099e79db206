// Values to text: Python's str(), repr() and json.dumps(), and numbers from text.
//
// Marks: strings keep theirs; numbers, None, True and names of types are trusted (they hold no words of the request);
// the punctuation around the items of a list or dict is trusted only when everything in it is, so that a request's data
// comes out as one untrusted run.
// Thread safety: free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace millrace::jinja {

MarkedString to_str(const Value& value, Budget& budget);
MarkedString to_repr(const Value& value, Budget& budget);
MarkedString to_ascii(const Value& value, Budget& budget);  // repr() with escapes for what is not ASCII

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<MarkedString> indent;  // what one level is indented by; unset: everything on one line
  MarkedString item_separator{", ", true};
  MarkedString key_separator{": ", true};
};
// Fails for what json.dumps cannot serialize.
MarkedString to_json(const Value& value, const JsonStyle& style, Budget& budget);

std::string int_to_string(Int value);
std::string float_repr(double value);  // the shortest digits that read back as the same number, as Python prints them

// int(text, base) and float(text) of Python: surrounding space and digit separators allowed. nullopt where Python
// raises ValueError; fails where the number does not fit 128 bits.
std::optional<Int> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

// int(float): fails for NaN and infinity, and beyond 128 bits.
Int float_to_int(double value);

}  // namespace millrace::jinja
