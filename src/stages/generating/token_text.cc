#include "stages/generating/token_text.h"

#include <utility>

namespace millrace {

Result<TokenText> TokenText::create(std::shared_ptr<const Tokenizer> tokenizer, const wire::DetokenizeStart& start) {
  ASSIGN_OR_RETURN(StopMatcher stops,
                   StopMatcher::create(start.stop, start.stop_regex, start.include_stop_str_in_output));
  return TokenText(IncrementalDetokenizer(std::move(tokenizer), start.skip_special_tokens, start.continues_text),
                   std::move(stops));
}

void TokenText::append(Piece& piece, StopMatcher::Output output) {
  piece.text += output.emit;
  if (output.matched_text) {
    piece.finish = wire::Finish{.reason = wire::FinishReason::kStop, .matched_text = std::move(output.matched_text)};
  } else if (!output.status.ok()) {
    piece.finish = wire::Finish{
        .reason = wire::FinishReason::kError, .code = output.status.code(), .message = output.status.message()};
  }
}

TokenText::Piece TokenText::feed(std::span<const int32_t> ids, bool last) {
  Piece piece;
  while (piece.fed < ids.size() && !piece.finish) {
    ++ids_fed_;
    append(piece, stops_.push(detokenizer_.push(ids[piece.fed++])));
  }
  if (!last || piece.finish) return piece;
  append(piece, stops_.push(detokenizer_.finish()));
  if (!piece.finish) append(piece, stops_.finish());
  return piece;
}

}  // namespace millrace
