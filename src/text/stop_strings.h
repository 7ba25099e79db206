// StopStrings: finds the request's stop strings in its output while it streams, and holds back what may become one.
//
// Owned by one request, used by one thread at a time. Works on bytes; the text pushed may be cut anywhere.
// Invariants: no byte of a matched stop string is ever emitted (unless include_stop), nor any byte after it; at most
// kMaxStopStringBytes - 1 bytes are held; the output does not depend on how the text is cut into pushes.
// Of several matches the one that ends first wins; of those that end together, the longest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;

class StopStrings {
 public:
  struct Output {
    std::string emit;          // safe to send now
    bool matched = false;      // a stop string is complete; later pushes emit nothing
    size_t matched_index = 0;  // which one, in the order given
  };

  // Errors: kInvalidArgument for too many, an empty, or a too long stop string. No stop strings: push() returns its
  // input.
  static Result<StopStrings> create(std::vector<std::string> stops, bool include_stop);

  Output push(std::string_view text);
  // What is still held; empty after a match. Call once, at the end of the output.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  StopStrings() = default;

  struct Pattern {
    std::string text;
    std::vector<uint16_t>
        border;        // border[i]: length of the longest proper prefix of text[0..i] that is also its suffix
    size_t state = 0;  // how many bytes of `text` the output so far ends with
  };
  std::vector<Pattern> patterns_;
  std::string held_;
  bool include_stop_ = false;
  bool matched_ = false;
};

}  // namespace millrace
