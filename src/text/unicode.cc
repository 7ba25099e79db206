#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <span>

#include "base/utf8.h"

namespace millrace {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};
struct StandIn {
  char32_t first;
  char32_t last;
  char32_t replacement;
};
struct Mapping {
  char32_t from;
  char32_t to;
};

#include "text/unicode_tables.inc"

template <typename Row>
const Row* find_range(std::span<const Row> rows, char32_t c) {
  const auto after =
      std::upper_bound(rows.begin(), rows.end(), c, [](char32_t v, const Row& row) { return v < row.first; });
  if (after == rows.begin() || std::prev(after)->last < c) return nullptr;
  return &*std::prev(after);
}

bool contains(std::span<const Range> ranges, char32_t c) { return find_range(ranges, c) != nullptr; }

// One bit for each 64 code points: most characters are distinguished from the few in a table without a search.
struct Pages {
  std::bitset<0x110000 / 64> bits;
  template <typename Row>
  explicit Pages(std::span<const Row> rows) {
    for (const Row& row : rows) {
      for (char32_t page = row.first / 64; page <= row.last / 64; ++page) bits.set(page);
    }
  }
  bool may_hold(char32_t c) const { return bits[c / 64]; }
};

bool unknown_to_normalization(char32_t c) {
  static const Pages pages{std::span<const Range>(kNormalizationUnknown)};
  return pages.may_hold(c) && contains(kNormalizationUnknown, c);
}

uint8_t combining_class(char32_t c) {
  if (c < 0x300 || unknown_to_normalization(c)) return 0;
  return static_cast<uint8_t>(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class);
}

// Whether `c` can be the second half of a canonical composition: Hangul vowels and finals, and the characters that
// utf8proc marks in the high half of comb_index.
bool combines_with_previous(char32_t c) {
  if (c < 0x300 || unknown_to_normalization(c)) return false;
  if ((c >= 0x1161 && c <= 0x1175) || (c >= 0x11A8 && c <= 0x11C2)) return true;
  const unsigned index = utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->comb_index;
  return index != UINT16_MAX && index >= 0x8000;
}

// Decomposed characters from one starter up to the next; reordered, composed and written when the next one comes.
class Normalizer {
 public:
  Normalizer(NormalForm form, bool mark)
      : compose_(form == NormalForm::kNfc || form == NormalForm::kNfkc),
        compatible_(form == NormalForm::kNfkc || form == NormalForm::kNfkd),
        mark_(mark) {}

  void add(char32_t c, bool untrusted) {
    std::array<utf8proc_int32_t, 32> parts;  // the longest decomposition, of U+FDFA, has 18
    utf8proc_ssize_t count = 1;
    parts[0] = static_cast<utf8proc_int32_t>(c);
    if (c >= 0x80 && !unknown_to_normalization(c)) {
      int boundary = 0;
      const int options = UTF8PROC_DECOMPOSE | (compatible_ ? UTF8PROC_COMPAT : 0);
      count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                      static_cast<utf8proc_option_t>(options), &boundary);
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) {
      const auto part = static_cast<char32_t>(parts[static_cast<size_t>(i)]);
      if (combining_class(part) == 0 && !combines_with_previous(part)) flush();
      run_.push_back(static_cast<utf8proc_int32_t>(part));
      untrusted_ = untrusted_ || untrusted;
    }
  }

  // ASCII characters interact with nothing before them, and only the last one with what comes after.
  void add_ascii(std::string_view text, bool untrusted) {
    flush();
    out_.append(text.substr(0, text.size() - 1), untrusted, mark_);
    run_.push_back(text.back());
    untrusted_ = untrusted;
  }

  MarkedText take() {
    flush();
    return std::move(out_);
  }

 private:
  void flush() {
    if (run_.size() > 1) {
      reorder();
      if (compose_) {
        const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        run_.resize(static_cast<size_t>(
            utf8proc_normalize_utf32(run_.data(), static_cast<utf8proc_ssize_t>(run_.size()), options)));
      }
    }
    encoded_.clear();
    for (const utf8proc_int32_t c : run_) utf8_append(encoded_, static_cast<char32_t>(c));
    out_.append(encoded_, untrusted_, mark_);
    run_.clear();
    untrusted_ = false;
  }

  // Canonical ordering (Unicode 15, D109): a stable sort of each stretch of non-starters. utf8proc's own is quadratic.
  void reorder() {
    for (size_t begin = 0; begin < run_.size();) {
      size_t end = begin;
      while (end < run_.size() && combining_class(static_cast<char32_t>(run_[end])) != 0) ++end;
      if (end - begin > 1) {
        std::stable_sort(run_.begin() + static_cast<ptrdiff_t>(begin), run_.begin() + static_cast<ptrdiff_t>(end),
                         [](utf8proc_int32_t a, utf8proc_int32_t b) {
                           return combining_class(static_cast<char32_t>(a)) < combining_class(static_cast<char32_t>(b));
                         });
      }
      begin = end + 1;
    }
  }

  bool compose_;
  bool compatible_;
  bool mark_;
  bool untrusted_ = false;
  std::vector<utf8proc_int32_t> run_;
  std::string encoded_;
  MarkedText out_;
};

}  // namespace

MarkedText unicode_normalize(const MarkedText& text, NormalForm form) {
  Normalizer normalizer(form, text.marked());
  const std::string_view bytes = text.bytes;
  const auto untrusted = [&](size_t at) { return text.marked() && text.untrusted[at] != 0; };
  for (size_t at = 0; at < bytes.size();) {
    size_t end = at;
    while (end < bytes.size() && static_cast<unsigned char>(bytes[end]) < 0x80 && untrusted(end) == untrusted(at))
      ++end;
    if (end > at) {
      normalizer.add_ascii(bytes.substr(at, end - at), untrusted(at));
      at = end;
      continue;
    }
    const CodePoint c = utf8_at(bytes, at);
    normalizer.add(c.value, untrusted(at));
    at += c.size_bytes;
  }
  return normalizer.take();
}

void append_lowercase(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    return;
  }
  if (c == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  const auto at = std::lower_bound(std::begin(kLowercaseOverrides), std::end(kLowercaseOverrides), c,
                                   [](const Mapping& mapping, char32_t v) { return mapping.from < v; });
  const bool listed = at != std::end(kLowercaseOverrides) && at->from == c;
  utf8_append(out, listed ? at->to : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
bool is_mark(char32_t c) { return contains(kMark, c); }
bool is_punctuation(char32_t c) { return contains(kPunctuation, c); }
bool is_numeric(char32_t c) { return contains(kNumeric, c); }
bool is_word(char32_t c) { return contains(kWord, c); }

std::string_view with_stand_ins(std::string_view text, std::string& buffer) {
  static const Pages pages{std::span<const StandIn>(kStandIns)};
  bool copied = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xE0) {  // no stand-in is shorter than three bytes
      ++at;
      continue;
    }
    const CodePoint c = utf8_at(text, at);
    if (pages.may_hold(c.value)) {
      if (const StandIn* row = find_range(std::span<const StandIn>(kStandIns), c.value)) {
        if (!copied) buffer.assign(text);
        copied = true;
        std::string encoded;
        utf8_append(encoded, row->replacement);
        buffer.replace(at, encoded.size(), encoded);
      }
    }
    at += c.size_bytes;
  }
  return copied ? std::string_view(buffer) : text;
}

}  // namespace millrace
