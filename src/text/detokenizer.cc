#include "text/detokenizer.h"

#include "text/decoder.h"

namespace millrace {

IncrementalDetokenizer::IncrementalDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                                               bool continues_text)
    : tokenizer_(std::move(tokenizer)),
      state_(std::make_unique<DecoderState>(tokenizer_->decoder(), continues_text)),
      skip_special_tokens_(skip_special_tokens) {}
IncrementalDetokenizer::~IncrementalDetokenizer() = default;
IncrementalDetokenizer::IncrementalDetokenizer(IncrementalDetokenizer&&) noexcept = default;
IncrementalDetokenizer& IncrementalDetokenizer::operator=(IncrementalDetokenizer&&) noexcept = default;

std::string IncrementalDetokenizer::push(int32_t id, bool keep) {
  std::string out;
  if (!tokenizer_->has_token(id) || (skip_special_tokens_ && !keep && tokenizer_->is_special(id))) return out;
  state_->push(tokenizer_->decoder_text(id), out);
  return out;
}

std::string IncrementalDetokenizer::finish() {
  std::string out;
  state_->finish(out);
  return out;
}

}  // namespace millrace
