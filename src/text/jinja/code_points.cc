#include "text/jinja/code_points.h"

#include "base/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace millrace::jinja {
namespace {

constexpr uint32_t kBadByte = 0x110000;  // added to a byte that is not UTF-8

struct SpecialCase {
  uint32_t code_point;
  const char* upper;
  const char* title;
};
constexpr SpecialCase kSpecialCases[] = {
#include "text/jinja/special_casing.inc"
};

const SpecialCase* special_case(uint32_t code_point) {
  const SpecialCase* end = std::end(kSpecialCases);
  const SpecialCase* found =
      std::lower_bound(std::begin(kSpecialCases), end, code_point,
                       [](const SpecialCase& entry, uint32_t value) { return entry.code_point < value; });
  return found != end && found->code_point == code_point ? found : nullptr;
}

utf8proc_category_t category(uint32_t code_point) {
  if (code_point >= kBadByte) return UTF8PROC_CATEGORY_CN;
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

std::string upper_of(uint32_t c) {
  std::string out;
  if (const SpecialCase* special = special_case(c)) return special->upper;
  append_utf8(out, c >= kBadByte ? c : static_cast<uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::string title_of(uint32_t c) {
  std::string out;
  if (const SpecialCase* special = special_case(c)) return special->title;
  append_utf8(out, c >= kBadByte ? c : static_cast<uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::string lower_of(uint32_t c) {
  std::string out;
  if (c == 0x130) return "i\xCC\x87";
  append_utf8(out, c >= kBadByte ? c : static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  return out;
}

std::string fold_of(uint32_t c) {
  if (c >= kBadByte) return lower_of(c);
  utf8proc_int32_t folded[8];
  auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded, 8, UTF8PROC_CASEFOLD, nullptr);
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count && i < 8; ++i) append_utf8(out, static_cast<uint32_t>(folded[i]));
  return out;
}

bool is_cased(uint32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

// Marks, modifiers and the punctuation of Unicode's Case_Ignorable that occurs inside words.
bool is_case_ignorable(uint32_t c) {
  auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_ME || kind == UTF8PROC_CATEGORY_CF ||
         kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' ||
         c == 0xB7 || c == 0x2019;
}

// The sigma at [begin, end) ends a word: a cased letter before it, none behind it (Unicode's Final_Sigma).
bool is_final_sigma(std::string_view text, size_t begin, size_t end) {
  bool before = false;
  for (size_t at = begin; at > 0 && !before;) {
    at = previous_boundary(text, at);
    size_t position = at;
    uint32_t c = next_code_point(text, position);
    if (is_case_ignorable(c)) continue;
    if (!is_cased(c)) return false;
    before = true;
  }
  if (!before) return false;
  for (size_t at = end; at < text.size();) {
    uint32_t c = next_code_point(text, at);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

}  // namespace

uint32_t next_code_point(std::string_view text, size_t& at) {
  const int64_t c = utf8_next(text, at);
  return c >= 0 ? static_cast<uint32_t>(c) : kBadByte + static_cast<uint8_t>(text[at++]);
}

void append_utf8(std::string& out, uint32_t c) {
  if (c >= kBadByte) {
    out += static_cast<char>(c - kBadByte);
  } else {
    utf8_append(out, c);
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) next_code_point(text, at);
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) next_code_point(text, at);
  return at;
}

size_t previous_boundary(std::string_view text, size_t at) {
  if (static_cast<uint8_t>(text[at - 1]) < 0x80) return at - 1;
  // The character that ends exactly here, if there is one; else the byte stands for itself.
  for (size_t back = 2; back <= 4 && back <= at; ++back) {
    size_t end = at - back;
    if (next_code_point(text, end) < kBadByte && end == at) return at - back;
  }
  return at - 1;
}

bool is_space(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(uint32_t c) {
  auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

bool is_numeric(uint32_t c) {
  auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

bool is_printable(uint32_t c) {
  if (c == ' ') return true;
  auto kind = category(c);
  return kind != UTF8PROC_CATEGORY_CN && !(kind >= UTF8PROC_CATEGORY_ZS && kind <= UTF8PROC_CATEGORY_CO);
}

bool is_upper(uint32_t c) {
  // The other two ranges have the property Other_Uppercase.
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) || (c >= 0x24B6 && c <= 0x24CF);
}

bool is_lower(uint32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || (c >= 0x2B0 && c <= 0x2B8) ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

bool is_title(uint32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }

bool is_identifier_start(uint32_t c) { return c == '_' || is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL; }

bool is_identifier_part(uint32_t c) {
  auto kind = category(c);
  return is_identifier_start(c) || kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_MN ||
         kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_PC;
}

MarkedString map_case(const MarkedString& source, CaseMap map) {
  const std::string& text = source.text();
  MarkedString out;
  bool previous_cased = false;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    uint32_t c = next_code_point(text, at);
    bool upper = map == CaseMap::kUpper || (map == CaseMap::kSwap && !is_upper(c));
    bool title = (map == CaseMap::kTitle && !previous_cased) || (map == CaseMap::kCapitalize && begin == 0);
    previous_cased = map == CaseMap::kTitle && is_cased(c);
    std::string mapped;
    if (map == CaseMap::kFold) {
      mapped = fold_of(c);
    } else if (upper || title) {
      mapped = title ? title_of(c) : upper_of(c);
    } else if (c == 0x3A3) {
      mapped = is_final_sigma(text, begin, at) ? "\xCF\x82" : "\xCF\x83";
    } else {
      mapped = lower_of(c);
    }
    out.append(mapped, source.trusted_at(begin));
  }
  return out;
}

}  // namespace millrace::jinja
