// Regex: the regular expressions of tokenizer.json, which are written for Oniguruma (Ruby syntax), run by PCRE2.
//
// A pattern is immutable after compile and shared by all threads; the buffers of a search live in RegexScratch, one per
// thread at a time. Matches equal Oniguruma's on the patterns in use: where the two differ (Unicode version, \s, \w,
// \p{Han}, the meaning of ^ and $) the pattern is rewritten or the subject gets stand-ins; what cannot be mended is
// refused (kUnsupported).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace millrace {

inline constexpr size_t kMaxRegexBytes = size_t{64} << 10;

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class RegexMatches;
  bool grow_stack();  // false when it is there already: the pattern needs more than the limit

  pcre2_real_match_data_8* match_data_ = nullptr;
  pcre2_real_match_context_8* context_ = nullptr;
  pcre2_real_jit_stack_8* stack_ = nullptr;  // made when a search has outgrown the 32 KiB of the machine's stack
};

class Regex {
 public:
  // Errors: kInvalidArgument (PCRE2's reason and where), kTooLarge, kUnsupported.
  static Result<Regex> compile(std::string_view pattern);
  // A pattern that matches `text` itself.
  static Result<Regex> literal(std::string_view text);

 private:
  friend class RegexMatches;
  Regex() = default;
  static Result<Regex> compile_translated(const std::string& pattern);

  std::shared_ptr<pcre2_real_code_8> code_;
  bool jit_ = false;
};

// The matches of one pattern in one text, from left to right, not overlapping; empty matches as Oniguruma's iterator
// gives them. `text` must be valid UTF-8 and outlive the object.
class RegexMatches {
 public:
  RegexMatches(const Regex& regex, RegexScratch& scratch, std::string_view text);

  // True with the next match in begin/end, false at the end. Errors: kTooLarge when the search needs too much
  // backtracking.
  Result<bool> next(size_t& begin, size_t& end);

 private:
  int search();

  const Regex& regex_;
  RegexScratch& scratch_;
  std::string shadow_;
  std::string_view subject_;
  size_t from_ = 0;
  size_t last_end_ = SIZE_MAX;
  bool done_ = false;
};

}  // namespace millrace
