#include "stages/generating/token_text.h"

#include <algorithm>
#include <utility>

namespace millrace {

Result<TokenText> TokenText::create(std::shared_ptr<const Tokenizer> tokenizer, const wire::DetokenizeStart& start) {
  ASSIGN_OR_RETURN(StopMatcher stops,
                   StopMatcher::create(start.stop, start.stop_regex, start.include_stop_str_in_output));
  OutputMarkers markers;
  if (start.parsing) markers = find_output_markers(*start.parsing, *tokenizer);
  return TokenText(IncrementalDetokenizer(std::move(tokenizer), start.skip_special_tokens, start.continues_text),
                   std::move(stops), std::move(markers));
}

void TokenText::append(Chunk& chunk, StopMatcher::Output output, bool last) {
  last |= output.matched_text || !output.status.ok();
  const std::size_t before = released_ - partial_.size() - chunk.text.size();  // bytes of earlier chunks
  chunk.text += std::exchange(partial_, {});
  chunk.text += output.emit;
  released_ += output.emit.size();
  for (; !marks_.empty() && marks_.front().begin + marks_.front().size <= released_; marks_.pop_front()) {
    chunk.marks.push_back({marks_.front().begin - before, marks_.front().size});
  }
  if (!last && !marks_.empty() && marks_.front().begin < released_) {
    partial_ = chunk.text.substr(marks_.front().begin - before);
    chunk.text.resize(marks_.front().begin - before);
  }
  if (output.matched_text) {
    chunk.finish = wire::Finish{.reason = wire::FinishReason::kStop, .matched_text = std::move(output.matched_text)};
  } else if (!output.status.ok()) {
    chunk.finish = wire::Finish{
        .reason = wire::FinishReason::kError, .code = output.status.code(), .message = output.status.message()};
  }
}

std::string TokenText::text_of(int32_t id) {
  const OutputMarkers::Token* marker = markers_.find(id);
  std::string text = detokenizer_.push(id, marker != nullptr);
  pushed_ += text.size();
  // A decoder may hold what it gets until more has come; no decoder of a tokenizer with such markers does.
  if (marker && text.ends_with(marker->text)) {
    marks_.push_back({pushed_ - marker->text.size(), marker->text.size()});
  }
  return text;
}

TokenText::Chunk TokenText::push(std::span<const int32_t> ids, bool last) {
  Chunk chunk;
  while (chunk.fed < ids.size() && !chunk.finish) {
    ++ids_fed_;
    append(chunk, stops_.push(text_of(ids[chunk.fed++])), false);
  }
  if (!last || chunk.finish) return chunk;
  const std::string held = detokenizer_.finish();
  pushed_ += held.size();
  append(chunk, stops_.push(held), false);
  if (!chunk.finish) append(chunk, stops_.finish(), true);
  return chunk;
}

bool end_by_text(TokenText& stops, wire::TokenDelta& delta) {
  TokenText::Chunk chunk = stops.push(delta.tokens, delta.finish.has_value());
  delta.tokens.resize(chunk.fed);
  if (!chunk.finish) return false;
  const bool by_text = !delta.finish;
  delta.finish = std::move(chunk.finish);
  delta.logprobs.resize(std::min(delta.logprobs.size(), chunk.fed));
  delta.usage.completion_tokens = stops.ids_fed();
  return by_text;
}

}  // namespace millrace
