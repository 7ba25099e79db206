// StopRegexes: finds a match of one of the request's stop_regex patterns in its output while it streams.
//
// What a match is. Patterns are PCRE2's (Perl's syntax; Unicode: \d, \w and classes know all scripts; . stands for one
// character but not for a newline; ^ is the beginning of the output). The output is looked at after each character, as
// if it ended there: the request stops at the first character after which some pattern has a match in the output so
// far. So
//   - the result does not depend on tokens or on how the text is cut into pushes;
//   - a greedy pattern does not wait: "a+" stops at the first a; $, \b and (?!...) see the end of the output so far;
//   - of several matches of one pattern in the output so far the leftmost counts, as always; of several patterns that
//     match after the same character, the one whose match starts first, then the one given first;
//   - an empty match is no match: "x*" stops at the first x, "$" never stops;
//   - a match must start within the last kMaxStopRegexMatchBytes of the output so far: what lies before is released and
//     no longer looked at, except by look-behinds (of kMaxStopRegexLookbehindChars each).
// open_from() is the position from which the text may still become part of a match; the text before never will.
//
// Cost. A character costs each pattern a search from open_from() on, not from the beginning of the output; a position
// that cannot start a match any more is never tried again. The steps (text/regex.h) of all patterns together are
// bounded for each character of the output; what one does not use, later ones may, up to a limit. Patterns that need
// more, such as (a+)+[bc] on a long run of a, give up: push_character() reports it, and the request ends with that
// error.
//
// Owned by one request, used by one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"
#include "wire/limits.h"

namespace millrace {

inline constexpr size_t kMaxStopRegexes = wire::kMaxStopStrings;
inline constexpr size_t kMaxStopRegexBytes = wire::kMaxStopStringBytes;  // of one pattern
inline constexpr size_t kMaxStopRegexCodeBytes = size_t{512} << 10;      // of one pattern, compiled
inline constexpr size_t kMaxStopRegexLookbehindChars = 255;              // of one look-behind
inline constexpr size_t kMaxStopRegexMatchBytes = 2048;                  // of the output, from a match's start on
inline constexpr uint64_t kStopRegexStepsPerCharacter = 16384;           // a tenth of a millisecond
inline constexpr uint64_t kMaxSavedStopRegexSteps = uint64_t{1} << 20;

// Whether `pattern` can be a stop_regex: its length, its syntax (PCRE2's reason and the byte where), what it compiles
// to, and no \K, \G or verb like (*COMMIT), which have no meaning in a text that grows. Errors: kInvalidArgument.
Status check_stop_regex(std::string_view pattern);

class StopRegexes {
 public:
  struct Match {
    size_t begin = 0;  // bytes from the beginning of the output
    size_t end = 0;    // before the output's end only where a look-ahead saw more
    size_t index = 0;  // which pattern, in the order given
  };

  // Errors: as check_stop_regex(), or more than kMaxStopRegexes patterns.
  static Result<StopRegexes> create(const std::vector<std::string>& patterns);

  bool empty() const { return patterns_.empty(); }

  // The next character, whole. Bytes that are not UTF-8 count as U+001A each. After a
  // match or an error, call no more. Errors: kInvalidArgument, a pattern gave up.
  Result<std::optional<Match>> push_character(std::string_view character);

  // Bytes from the beginning of the output; at most kMaxStopRegexMatchBytes before its end.
  size_t open_from() const { return base_ + lowest_; }

 private:
  struct Pattern {
    std::string text;
    Regex regex;
    size_t from = 0;  // in window_: no match starts before it
  };

  StopRegexes() = default;
  Result<std::optional<Match>> search(size_t index);
  void forget();

  std::vector<Pattern> patterns_;
  std::string window_;  // the end of the output: what look-behinds may see, and what is open
  size_t base_ = 0;     // where in the output the window begins
  size_t lowest_ = 0;   // the lowest `from`
  uint64_t steps_ = kMaxSavedStopRegexSteps;
};

}  // namespace millrace
