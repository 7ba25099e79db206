#include "text/stop_regex.h"

#include <algorithm>

#include "base/utf8.h"

namespace millrace {
namespace {

// The window keeps this much before the first open position: a look-behind never sees the window's own beginning, which
// it would take for the beginning of the output. (+ 1 character: so that ^ inside the look-behind cannot match there.)
constexpr size_t kContextBytes = (kMaxStopRegexLookbehindChars + 1) * 4;
// The window is cut when it holds so much more than that, so that moving it costs little for each character.
constexpr size_t kSlackBytes = 4096;
constexpr char kStandIn = '\x1A';

// One for each thread: it may hold the stack of a deep search, and there are many requests.
RegexScratch& scratch() {
  thread_local RegexScratch instance;
  return instance;
}

// Where the character class that opens at `at` ends: the position of its ].
size_t class_end(std::string_view pattern, size_t at) {
  ++at;
  if (at < pattern.size() && pattern[at] == '^') ++at;
  if (at < pattern.size() && pattern[at] == ']') ++at;  // the first one is a member
  while (at < pattern.size() && pattern[at] != ']') {
    const size_t posix_end = pattern.substr(at).starts_with("[:") ? pattern.find(":]", at) : std::string_view::npos;
    if (posix_end != std::string_view::npos) {
      at = posix_end + 2;
    } else {
      at += pattern[at] == '\\' ? 2 : 1;
    }
  }
  return at;
}

// \K moves a match's start, \G asks where the search began, and the verbs steer the search from one start to the next:
// all three depend on how the search runs, not on the text.
Status refuse_unclear(std::string_view pattern) {
  for (size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] == '\\') {
      ++at;
      if (at < pattern.size() && (pattern[at] == 'K' || pattern[at] == 'G')) {
        return invalid_argument("\\{} at byte {} cannot be used in a stop_regex", pattern[at], at - 1);
      }
    } else if (pattern[at] == '[') {
      at = class_end(pattern, at);
    } else if (pattern.substr(at).starts_with("(*")) {
      return invalid_argument("(* at byte {} cannot be used in a stop_regex", at);
    }
  }
  return ok_status();
}

Result<Regex> compile(std::string_view pattern) {
  if (pattern.empty()) return invalid_argument("the pattern is empty; wanted at least one byte");
  if (pattern.size() > kMaxStopRegexBytes) {
    return invalid_argument("the pattern has {} bytes; wanted at most {}", pattern.size(), kMaxStopRegexBytes);
  }
  RETURN_IF_ERROR(refuse_unclear(pattern));
  ASSIGN_OR_RETURN(Regex regex, Regex::compile_perl(pattern));
  if (regex.code_bytes() > kMaxStopRegexCodeBytes) {
    return invalid_argument("the pattern compiles to {} bytes; wanted at most {}", regex.code_bytes(),
                            kMaxStopRegexCodeBytes);
  }
  if (regex.lookbehind_chars() > kMaxStopRegexLookbehindChars) {
    return invalid_argument("a look-behind of the pattern steps back {} characters; wanted at most {}",
                            regex.lookbehind_chars(), kMaxStopRegexLookbehindChars);
  }
  return regex;
}

}  // namespace

Status check_stop_regex(std::string_view pattern) { return compile(pattern).status(); }

Result<StopRegexes> StopRegexes::create(const std::vector<std::string>& patterns) {
  if (patterns.size() > kMaxStopRegexes) {
    return invalid_argument("stop_regex has {} patterns; wanted at most {}", patterns.size(), kMaxStopRegexes);
  }
  StopRegexes result;
  for (const std::string& pattern : patterns) {
    auto regex = compile(pattern);
    if (!regex.ok()) return regex.status().with_prefix("stop_regex");
    result.patterns_.push_back({.text = pattern, .regex = std::move(regex).value()});
  }
  return result;
}

Result<std::optional<StopRegexes::Match>> StopRegexes::push_character(std::string_view character) {
  CHECK(!character.empty());
  if (utf8_find_invalid(character) == std::string_view::npos) {
    window_ += character;
  } else {
    window_.append(character.size(), kStandIn);
  }
  steps_ = std::min(steps_ + kStopRegexStepsPerCharacter, kMaxSavedStopRegexSteps);
  std::optional<Match> first;
  lowest_ = window_.size();
  for (size_t i = 0; i < patterns_.size(); ++i) {
    ASSIGN_OR_RETURN(const std::optional<Match> match, search(i));
    if (match && (!first || match->begin < first->begin)) first = match;
    lowest_ = std::min(lowest_, patterns_[i].from);
  }
  if (!first) forget();
  return first;
}

Result<std::optional<StopRegexes::Match>> StopRegexes::search(size_t index) {
  Pattern& pattern = patterns_[index];
  CHECK(pattern.from <= window_.size());
  if (window_.size() - pattern.from > kMaxStopRegexMatchBytes) {
    pattern.from = window_.size() - kMaxStopRegexMatchBytes;
    while (utf8_is_continuation(window_[pattern.from])) ++pattern.from;
  }
  const auto find = [&](bool may_continue) {
    return pattern.regex.find(scratch(), window_, pattern.from, may_continue, steps_);
  };
  // First as a text that goes on: all starts before the place that it names are settled, now and for ever. Only where
  // some start is open does it matter what a text that ends here gives.
  Regex::Found found = find(true);
  if (found.verdict == Regex::Verdict::kPartial) {
    pattern.from = std::max(pattern.from, found.begin);
    if (pattern.from == window_.size()) return std::optional<Match>();
    found = find(false);
  } else if (found.verdict == Regex::Verdict::kNone) {
    pattern.from = window_.size();
  }
  if (found.verdict == Regex::Verdict::kGaveUp) {
    return invalid_argument("the stop_regex '{}' needs more than {} steps a character in the output before byte {}",
                            pattern.text, kStopRegexStepsPerCharacter, base_ + window_.size());
  }
  if (found.verdict != Regex::Verdict::kMatch) return std::optional<Match>();
  CHECK(found.begin <= found.end && found.end <= window_.size());  // refuse_unclear() keeps \K out
  return std::optional(Match{base_ + found.begin, base_ + found.end, index});
}

// Drops the part of the window that nothing looks at any more.
void StopRegexes::forget() {
  if (lowest_ < kContextBytes + kSlackBytes) return;
  size_t cut = lowest_ - kContextBytes;
  while (utf8_is_continuation(window_[cut])) --cut;
  window_.erase(0, cut);
  base_ += cut;
  lowest_ -= cut;
  for (Pattern& pattern : patterns_) {
    CHECK(pattern.from >= cut);
    pattern.from -= cut;
  }
}

}  // namespace millrace
