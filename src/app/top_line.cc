#include "app/top_line.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace millrace {
namespace {

constexpr int kLabelColumns = 11;

const char* code_of(TopStyle style) {
  static constexpr const char* kCodes[] = {"", "1", "2", "32", "31", "36", "33", "34"};
  return kCodes[static_cast<std::size_t>(style)];
}

// The bytes of the first `columns` code points, and how many these are.
std::string_view cut(std::string_view text, int columns, int& taken) {
  taken = 0;
  std::size_t at = 0;
  while (at < text.size() && taken < columns) {
    ++taken;
    do ++at;
    while (at < text.size() && utf8_is_continuation(text[at]));
  }
  return text.substr(0, at);
}

}  // namespace

void TopLine::add(std::string_view text, TopStyle style) {
  int taken = 0;
  std::string shown(cut(text, left_, taken));
  std::ranges::replace_if(
      shown, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  left_ -= taken;
  if (shown.empty()) return;
  if (!color_ || style == TopStyle::kPlain) {
    text_ += shown;
    return;
  }
  text_ += std::string("\033[") + code_of(style) + "m" + shown + "\033[0m";
}

void TopLine::add_padded(std::string_view text, int width) {
  int taken = 0;
  const std::string_view shown = cut(text, width, taken);
  add(shown);
  add(std::string(static_cast<std::size_t>(width - taken), ' '));
}

void TopLine::label(std::string_view text) {
  int taken = 0;
  const std::string_view shown = cut(text, 64, taken);
  add(shown, TopStyle::kDim);
  add(std::string(static_cast<std::size_t>(std::max(1, kLabelColumns - taken)), ' '));
}

std::string TopLines::text() const {
  std::string out;
  for (const TopLine& line : lines_) out += line.text() + "\n";
  return out;
}

const char* spark_glyph(double part) {
  static constexpr const char* kGlyphs[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kGlyphs[static_cast<std::size_t>(std::clamp(std::ceil(part * 8), 0.0, 8.0))];
}

}  // namespace millrace
