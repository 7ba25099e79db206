#include "grammar/token_mark.h"

#include <algorithm>

namespace millrace::grammar {

std::string token_mark(std::string_view token_text) {
  std::string out(1, kMarkBegin);
  out += token_text;
  out += kMarkEnd;
  return out;
}

bool has_mark_byte(std::string_view bytes) {
  return bytes.find(kMarkBegin) != std::string_view::npos || bytes.find(kMarkEnd) != std::string_view::npos;
}

std::string with_marks(std::string_view text, const std::vector<std::string>& markers) {
  std::string out;
  while (!text.empty()) {
    std::string_view longest;
    for (const std::string& marker : markers) {
      if (marker.size() > longest.size() && text.starts_with(marker)) longest = marker;
    }
    out += longest.empty() ? std::string(1, text.front()) : token_mark(longest);
    text.remove_prefix(std::max<std::size_t>(longest.size(), 1));
  }
  return out;
}

}  // namespace millrace::grammar
