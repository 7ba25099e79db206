#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/regex_syntax.h"
#include "text/unicode.h"

namespace millrace {
namespace {

constexpr size_t kJitStackFirstBytes = size_t{32} << 10;
constexpr size_t kJitStackMaxBytes = size_t{16} << 20;
constexpr size_t kMatchLimitBase = 10'000'000;  // PCRE2's own default
constexpr size_t kMatchLimitPerByte = 16;       // a greedy class over a long word steps back once a character
constexpr uint32_t kHeapLimitKib = 256 << 10;   // without JIT

struct StepCount {
  uint64_t left = 0;
  size_t at = 0;
};

// PCRE2 calls it before each item of a pattern that was compiled with PCRE2_AUTO_CALLOUT.
int count_step(pcre2_callout_block* block, void* data) {
  auto& count = *static_cast<StepCount*>(data);
  const size_t at = block->current_position;
  // An item such as .* passes many bytes at once, so the distance counts as well as the call: otherwise a short pattern
  // could read the text quadratically for a few steps.
  const uint64_t steps = 1 + (at > count.at ? at - count.at : count.at - at) / kRegexStepBytes;
  count.at = at;
  // A negative value ends the search with that error. Counted and not timed, so that it is the same on every machine.
  if (steps > count.left) return PCRE2_ERROR_MATCHLIMIT;
  count.left -= steps;
  return 0;
}

}  // namespace

RegexScratch::RegexScratch()
    // One pair of offsets: only the whole match is asked for, no group.
    : match_data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
  CHECK(match_data_ != nullptr && context_ != nullptr);
  pcre2_set_heap_limit(context_, kHeapLimitKib);
}

bool RegexScratch::grow_stack() {
  if (stack_ != nullptr) return false;
  // JIT code starts on 32 KiB of the thread's stack. A long word with backtracking needs more; the larger stack is made
  // then and kept, and grows by itself up to its limit.
  stack_ = pcre2_jit_stack_create(kJitStackFirstBytes, kJitStackMaxBytes, nullptr);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  return stack_ != nullptr;
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(match_data_);
  pcre2_match_context_free(context_);
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
}

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxRegexBytes) {
    return error(StatusCode::kTooLarge, "the pattern has {} bytes; wanted at most {}", pattern.size(), kMaxRegexBytes);
  }
  // Before the translation, which walks the pattern by characters.
  if (utf8_find_invalid(pattern) != std::string_view::npos) return invalid_argument("the pattern is not valid UTF-8");
  ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern));
  return compile_translated(translated);
}

Result<Regex> Regex::literal(std::string_view text) {
  // Half, as each byte may get a backslash.
  if (text.size() > kMaxRegexBytes / 2) {
    return error(StatusCode::kTooLarge, "the pattern has {} bytes; wanted at most {}", text.size(), kMaxRegexBytes / 2);
  }
  std::string escaped;
  for (const char c : text) {
    // A backslash before a letter or a digit would give it a meaning; before any other ASCII character it takes one
    // away.
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                       ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '\0';
    if (!plain) escaped += '\\';
    escaped += c;
  }
  return compile_translated(escaped);
}

Result<Regex> Regex::compile_translated(const std::string& pattern) {
  // In Ruby's syntax ^ and $ always match at lines.
  return compile_with(pattern, PCRE2_MULTILINE, PCRE2_JIT_COMPLETE);
}

Result<Regex> Regex::compile_perl(std::string_view pattern) {
  if (pattern.size() > kMaxRegexBytes) {
    return error(StatusCode::kTooLarge, "the pattern has {} bytes; wanted at most {}", pattern.size(), kMaxRegexBytes);
  }
  // The callouts count the steps of a request's own pattern, which may be hostile. A tokenizer's pattern comes with the
  // model and is bounded by a match limit alone, without their cost.
  return compile_with(pattern, PCRE2_AUTO_CALLOUT, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
}

Result<Regex> Regex::compile_with(std::string_view pattern, uint32_t options, uint32_t jit_options) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  // \C matches one byte, also in the middle of a character: matches would not be UTF-8 any more.
  options |= PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  CHECK(context != nullptr);
  // A line ends at LF alone, as in Oniguruma, whatever PCRE2 was built with.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // Bounds the stack that a hostile pattern may take.
  pcre2_set_parens_nest_limit(context.get(), kMaxRegexGroupDepth);
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &code,
                                       &offset, context.get());
  if (compiled == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof message);
    return invalid_argument("the pattern does not compile: {} (at byte {} of {})",
                            reinterpret_cast<const char*>(message), offset, pattern.size());
  }
  Regex regex;
  regex.code_.reset(compiled, &pcre2_code_free);
  // Not an error: where there is no JIT (or no executable memory) the interpreter gives the same matches, slower.
  regex.jit_ = pcre2_jit_compile(compiled, jit_options) == 0;
  return regex;
}

int Regex::run(RegexScratch& scratch, std::string_view text, size_t from, uint32_t options, size_t match_limit) const {
  CHECK(from <= text.size());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // Set for each search, as the scratch is shared by patterns with different limits.
  pcre2_set_match_limit(scratch.context_, static_cast<uint32_t>(std::min<size_t>(match_limit, UINT32_MAX)));
  const auto match = jit_ ? &pcre2_jit_match : &pcre2_match;
  int rc = 0;
  do {
    // The callers' texts are valid UTF-8; a check in each of the many searches of one text would make them quadratic.
    rc = match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | options, scratch.match_data_,
               scratch.context_);
  } while (rc == PCRE2_ERROR_JIT_STACKLIMIT && scratch.grow_stack());
  return rc;
}

Regex::Found Regex::find(RegexScratch& scratch, std::string_view text, size_t from, bool may_continue,
                         uint64_t& steps) const {
  StepCount count{.left = steps, .at = from};
  pcre2_set_callout(scratch.context_, count_step, &count);
  const int rc = run(scratch, text, from, PCRE2_NOTEMPTY | (may_continue ? PCRE2_PARTIAL_HARD : 0), kMatchLimitBase);
  // `count` lives on this stack, and the scratch is used by others next.
  pcre2_set_callout(scratch.context_, nullptr, nullptr);
  steps = count.left;
  if (rc == PCRE2_ERROR_NOMATCH) return {};
  if (rc < 0 && rc != PCRE2_ERROR_PARTIAL) return {.verdict = Verdict::kGaveUp};
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch.match_data_);
  return {rc < 0 ? Verdict::kPartial : Verdict::kMatch, ovector[0], ovector[1]};
}

size_t Regex::code_bytes() const {
  size_t code = 0, jit = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_SIZE, &code);
  if (jit_) pcre2_pattern_info(code_.get(), PCRE2_INFO_JITSIZE, &jit);
  return code + jit;
}

size_t Regex::lookbehind_chars() const {
  uint32_t chars = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MAXLOOKBEHIND, &chars);
  return chars;
}

RegexMatches::RegexMatches(const Regex& regex, RegexScratch& scratch, std::string_view text)
    : regex_(regex), scratch_(scratch), subject_(with_stand_ins(text, shadow_)) {}

int RegexMatches::search() {
  return regex_.run(scratch_, subject_, from_, 0, kMatchLimitBase + subject_.size() * kMatchLimitPerByte);
}

Result<bool> RegexMatches::next(size_t& begin, size_t& end) {
  while (!done_ && from_ <= subject_.size()) {
    const int rc = search();
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      PCRE2_UCHAR message[256];
      pcre2_get_error_message(rc, message, sizeof message);
      return error(StatusCode::kTooLarge, "a pattern of the tokenizer gave up at byte {} of {}: {}", from_,
                   subject_.size(), reinterpret_cast<const char*>(message));
    }
    const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(scratch_.match_data_);
    begin = ovector[0];
    end = std::max(ovector[0], ovector[1]);  // \K inside a look-ahead can put the end before the start
    if (begin == end && end == last_end_) {
      // An empty match right after the last one does not count: step one character on.
      if (from_ >= subject_.size()) break;
      from_ += utf8_at(subject_, from_).size_bytes;
      continue;
    }
    CHECK(end >= from_);  // each search begins where the last match ended
    // Also where the match is empty: the next search finds it again there, and the branch above steps on.
    from_ = end;
    last_end_ = end;
    return true;
  }
  done_ = true;
  return false;
}

}  // namespace millrace
