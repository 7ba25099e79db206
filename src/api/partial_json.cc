#include "api/partial_json.h"

namespace millrace::api {
namespace {

// Where the text may be cut, and what then closes it: behind a bracket that opens, or behind a complete value.
struct Cut {
  std::size_t end = 0;
  std::string closers;  // the innermost last
};

}  // namespace

std::string complete_json(std::string_view text) {
  Cut best;
  std::string open;  // the closers of what is open, the innermost last
  bool in_string = false, escaped = false, is_key = false, in_scalar = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
      if (!in_string && !is_key) best = {i + 1, open};
      continue;
    }
    const bool separates = c == ',' || c == '}' || c == ']';
    if (in_scalar && separates) best = {i, open};  // numbers and words end with what follows
    if (separates) in_scalar = false;
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '{':
      case '[':
        open += c == '{' ? '}' : ']';
        is_key = c == '{';
        best = {i + 1, open};
        break;
      case '}':
      case ']':
        if (!open.empty()) open.pop_back();
        is_key = false;
        best = {i + 1, open};
        break;
      case ',':
        is_key = !open.empty() && open.back() == '}';
        break;
      case ':':
        is_key = false;
        break;
      default:
        in_scalar = in_scalar || (c > ' ' && !is_key);
    }
    if (open.empty()) break;
  }
  std::string out(text.substr(0, best.end));
  out.append(best.closers.rbegin(), best.closers.rend());
  return out.empty() ? "{}" : out;
}

}  // namespace millrace::api
