// Unicode as Hugging Face tokenizers sees it: normalization forms, character classes, and stand-ins for PCRE2.
//
// tokenizers 0.23 takes its facts from four sources of different Unicode versions (its normalization tables are older
// than utf8proc's, its regular expressions newer than PCRE2's). unicode_tables.inc holds the differences, made by an
// oracle.
//
// Thread safety: free functions over constant tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Text with the provenance of its bytes. `untrusted` is empty (not asked for) or has one flag for each byte of `bytes`.
struct MarkedText {
  std::string bytes;
  std::vector<uint8_t> untrusted;

  bool marked() const { return !untrusted.empty(); }
  void append(std::string_view text, bool is_untrusted, bool mark) {
    bytes.append(text);
    if (mark) untrusted.insert(untrusted.end(), text.size(), is_untrusted);
  }
};

// `text` in the given form; O(n log n) whatever the combining marks. A run of characters that interact is untrusted
// when one of them is.
MarkedText unicode_normalize(const MarkedText& text, NormalForm form);

// The lowercase mapping of one character, appended to `out` (U+0130 has two characters).
void append_lowercase(std::string& out, char32_t c);

bool is_space(char32_t c);        // White_Space
bool is_mark(char32_t c);         // what StripAccents removes
bool is_punctuation(char32_t c);  // what the Punctuation pre-tokenizer splits on, ASCII symbols included
bool is_numeric(char32_t c);      // what the Digits pre-tokenizer splits on
bool is_word(char32_t c);         // \w of Rust's regex crate: Whitespace pre-tokenizer, single_word of added tokens

// `text` with each character that is newer than PCRE2's tables replaced by one of the same category and length, so that
// offsets are unchanged. Gives `text` itself when there is none, else a view into `buffer`.
std::string_view with_stand_ins(std::string_view text, std::string& buffer);

}  // namespace millrace
