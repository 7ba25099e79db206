#include "text/tools/python_literal.h"

#include <cstddef>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace millrace {
namespace {

constexpr std::string_view kEscapes = R"(\'"nrt)", kEscaped = "\\'\"\n\r\t";

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The text begins with a quote. Takes all up to the next one.
std::optional<std::string> take_string(std::string_view& text) {
  std::string out;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == text.front()) {
      text.remove_prefix(i + 1);
      return out;
    }
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const std::size_t escape = ++i < text.size() ? kEscapes.find(text[i]) : std::string_view::npos;
    if (escape == std::string_view::npos) return std::nullopt;
    out += kEscaped[escape];
  }
  return std::nullopt;
}

std::string_view take_word(std::string_view& text) {
  std::size_t size = 0;
  while (size < text.size() && is_word_byte(text[size])) ++size;
  const std::string_view word = text.substr(0, size);
  text.remove_prefix(size);
  return word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word;
}

}  // namespace

// Strings and names become those of JSON and the rest stays; whether that is JSON, its parser decides.
std::optional<std::string> python_as_json(std::string_view literal) {
  std::string out;
  while (!literal.empty()) {
    const char next = literal.front();
    if (next == '\'' || next == '"') {
      const std::optional<std::string> string = take_string(literal);
      if (!string) return std::nullopt;
      json_append_string(out, *string);
    } else if (is_word_byte(next)) {
      out += take_word(literal);
    } else {
      out += next;
      literal.remove_prefix(1);
    }
  }
  if (!parse_json(out).ok()) return std::nullopt;
  return out;
}

}  // namespace millrace
