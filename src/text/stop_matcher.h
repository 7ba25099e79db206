// StopMatcher: everything that ends a request by its output's text: stop strings and stop_regex patterns together.
//
// Owned by one request, used by one thread at a time. The text pushed may be cut anywhere.
// Invariants: no byte of the match that ends the request is ever emitted (unless include_stop, then all of it), nor any
// byte after it; less than kMaxStopStringBytes + kMaxStopRegexMatchBytes are held; the output does not depend on how
// the text is cut into pushes. The earliest end wins, where a pattern's match ends with the character that completes it
// (text/stop_regex.h); of those that end together the longest, and stop strings before patterns.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/stop_regex.h"
#include "text/stop_strings.h"

namespace millrace {

class StopMatcher {
 public:
  struct Output {
    std::string emit;                         // safe to send now
    std::optional<std::string> matched_text;  // the request ends here: by this stop string or pattern
    Status status;  // not OK: the request ends here, for a pattern gave up (kInvalidArgument); what was held is in emit
  };

  // Errors: kInvalidArgument, as StopStrings::create() and StopRegexes::create().
  static Result<StopMatcher> create(std::vector<std::string> stops, std::vector<std::string> regexes,
                                    bool include_stop);

  // After a match or an error it emits nothing.
  Output push(std::string_view text);
  // The end of the output: what is still held, and what a last, incomplete character completes.
  Output finish();

 private:
  StopMatcher(StopStrings strings, StopRegexes regexes) : strings_(std::move(strings)), regexes_(std::move(regexes)) {}
  void push_character(std::string_view character, Output& out);
  void release(Output& out, size_t until);

  StopStrings strings_;
  StopRegexes regexes_;
  std::vector<std::string> stops_;
  std::vector<std::string> patterns_;
  std::string character_;  // the beginning of one
  std::string released_;   // what the stop strings have released and a pattern may still claim
  size_t pushed_ = 0;      // bytes of the output so far
  size_t emitted_ = 0;     // of those
  bool include_stop_ = false;
  bool ended_ = false;
};

}  // namespace millrace
