#include "stages/generating/parsed_text.h"

#include <string_view>

namespace millrace {

void ParsedText::push(const TokenText::Chunk& chunk, bool last, OutputEvents& out) {
  const bool was_reasoning = parser_.in_reasoning();
  const std::string_view text = chunk.text;
  std::size_t done = 0;
  for (const TokenText::Mark& mark : chunk.marks) {
    if (mark.begin > done) parser_.push(text.substr(done, mark.begin - done), out);
    parser_.push_marker(text.substr(mark.begin, mark.size), out);
    done = mark.begin + mark.size;
  }
  if (done < text.size()) parser_.push(text.substr(done), out);
  // The tags count: the first token that is inside, and the one that ends it.
  if (was_reasoning || parser_.in_reasoning()) reasoning_tokens_ += static_cast<int32_t>(chunk.fed);
  if (last) parser_.finish(out);
}

}  // namespace millrace
