#include "base/svg.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/status.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr char32_t kFirstPrintable = 0x20;
constexpr std::string_view kNonCharacters[] = {"\xEF\xBF\xBE", "\xEF\xBF\xBF"};  // U+FFFE and U+FFFF

// XML 1.0, production 2 (Char). The writer drops tabs and line breaks too: a drawing has one line of text an element.
bool is_xml_character(std::string_view character) {
  if (static_cast<unsigned char>(character[0]) < kFirstPrintable) return false;
  return character != kNonCharacters[0] && character != kNonCharacters[1];
}

std::string_view entity_of(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";  // unlike &apos;, HTML 4 knows it
    default:
      return {};
  }
}

std::string xml_text(std::string_view text) {
  const std::string valid = utf8_lossy(text);
  std::string out;
  for (std::size_t at = 0; at < valid.size();) {
    const std::string_view character = std::string_view(valid).substr(at, utf8_at(valid, at).size_bytes);
    const std::string_view entity = entity_of(character[0]);
    if (!entity.empty()) {
      out += entity;
    } else if (is_xml_character(character)) {
      out += character;
    }
    at += character.size();
  }
  return out;
}

}  // namespace

SvgWriter& SvgWriter::begin(std::string_view element) {
  CHECK(!element.empty());
  finish_start_tag();
  out_ += fmt::format("<{}", element);
  open_.emplace_back(element);
  in_start_tag_ = true;
  return *this;
}

SvgWriter& SvgWriter::attribute(std::string_view name, std::string_view value) {
  CHECK(in_start_tag_);
  out_ += fmt::format(" {}=\"{}\"", name, xml_text(value));
  return *this;
}

SvgWriter& SvgWriter::attribute(std::string_view name, double value, int decimals) {
  CHECK(std::isfinite(value) && decimals >= 0);
  return attribute(name, fmt::format("{:.{}f}", value, decimals));
}

SvgWriter& SvgWriter::text(std::string_view text) {
  CHECK(!open_.empty());
  finish_start_tag();
  out_ += xml_text(text);
  return *this;
}

SvgWriter& SvgWriter::end() {
  CHECK(!open_.empty());
  if (in_start_tag_) {
    out_ += "/>";
  } else {
    out_ += fmt::format("</{}>", open_.back());
  }
  in_start_tag_ = false;
  open_.pop_back();
  return *this;
}

SvgWriter& SvgWriter::line_break() {
  finish_start_tag();
  out_ += '\n';
  return *this;
}

std::string SvgWriter::take() {
  CHECK(open_.empty());
  return std::exchange(out_, {});
}

void SvgWriter::finish_start_tag() {
  if (in_start_tag_) out_ += '>';
  in_start_tag_ = false;
}

}  // namespace millrace
