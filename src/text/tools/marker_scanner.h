// MarkerScanner: finds markers in a text that comes in any cuts, for tokenizers that have no token for them.
//
// Owned by one parser; one thread at a time. It holds the beginning of a marker, less than its length. What it gives
// does not depend on the cuts. A marker's first byte occurs in it once, so nothing is searched twice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace {

class MarkerScanner {
 public:
  struct Symbol {
    std::string text;
    bool is_marker = false;
  };

  explicit MarkerScanner(std::vector<std::string> markers);

  void push(std::string_view text, std::vector<Symbol>& out);
  // What is held, at the end of the text or before a marker's token: it is text.
  std::string take_held();

 private:
  enum class Match { kNone, kBegins, kComplete };
  // Whether a marker stands at the start of `text`, or could; `size` gets the length of a complete one.
  Match match(std::string_view text, std::size_t& size) const;

  std::vector<std::string> markers_;
  std::string first_bytes_;
  std::string held_;
};

}  // namespace millrace
