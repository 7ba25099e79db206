// Regex: regular expressions, run by PCRE2. Those of tokenizer.json are written for Oniguruma (Ruby syntax), those of
// requests in PCRE2's own syntax.
//
// A pattern is immutable after compile and shared by all threads; the buffers of a search live in RegexScratch, one per
// thread at a time. Matches of compile() equal Oniguruma's on the patterns in use: where the two differ (Unicode
// version, \s, \w, \p{Han}, the meaning of ^ and $) the pattern is rewritten or the subject gets stand-ins; what cannot
// be mended is refused (kUnsupported).
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
inline constexpr uint32_t kMaxRegexGroupDepth = 100;  // PCRE2 compiles nested groups by recursion
// A step of a search: an item of the pattern is tried, or so many bytes of the text are passed, forward or back.
inline constexpr size_t kRegexStepBytes = 8;

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
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
  // PCRE2's own syntax with Unicode character classes, for find(). Errors: as compile().
  static Result<Regex> compile_perl(std::string_view pattern);

  enum class Verdict { kNone, kPartial, kMatch, kGaveUp };
  struct Found {
    Verdict verdict = Verdict::kNone;
    size_t begin = 0;
    size_t end = 0;
  };
  // The leftmost match in `text` (valid UTF-8) that starts at `from` or later and is not empty. `may_continue`: the
  // text may grow, and kPartial gives the position from which a longer text might match or match otherwise; a position
  // before that never will. `steps`: how much the search may do, less what it did; see kRegexStepBytes. kGaveUp: that
  // was too little. The count is the same on every machine. Only for a pattern of compile_perl().
  Found find(RegexScratch& scratch, std::string_view text, size_t from, bool may_continue, uint64_t& steps) const;

  size_t code_bytes() const;
  // The most characters that a look-behind steps back, as PCRE2 knows them: those of nested ones are not added up.
  size_t lookbehind_chars() const;

 private:
  friend class RegexMatches;
  Regex() = default;
  static Result<Regex> compile_translated(const std::string& pattern);
  static Result<Regex> compile_with(std::string_view pattern, uint32_t options, uint32_t jit_options);
  int run(RegexScratch& scratch, std::string_view text, size_t from, uint32_t options, size_t match_limit) const;

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
