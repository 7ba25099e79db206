#include "stages/prompt_encoder.h"

#include <utility>

namespace millrace {

PromptEncoder::PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                             std::size_t max_prompt_bytes)
    : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)), max_prompt_bytes_(max_prompt_bytes) {}

Result<PromptEncoder::Ids> PromptEncoder::encode(const Prompt& prompt) const {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return encode_text(*text);
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) return encode_chat(*chat);
  if (const auto* parts = std::get_if<SegmentPrompt>(&prompt)) {
    RETURN_IF_ERROR(check_size(prompt_bytes(prompt)));
    return tokenizer_->encode(parts->segments, {.add_special_tokens = false});
  }
  const Ids& ids = std::get<TokenPrompt>(prompt).ids;
  RETURN_IF_ERROR(check_ids(ids));
  return ids;
}

Status PromptEncoder::check_ids(const Ids& ids) const {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!tokenizer_->has_token(ids[i])) {
      return invalid_argument("token id {} at position {} is not in the vocabulary; wanted an id below {}", ids[i], i,
                              tokenizer_->vocab_size());
    }
  }
  return ok_status();
}

Status PromptEncoder::check_size(std::size_t bytes) const {
  if (bytes <= max_prompt_bytes_) return ok_status();
  return error(StatusCode::kTooLarge, "the prompt has {} bytes; wanted at most {}, more than fits the model's context",
               bytes, max_prompt_bytes_);
}

// A completion prompt is the author's own text: special tokens in it take effect, as in every other engine.
Result<PromptEncoder::Ids> PromptEncoder::encode_text(const TextPrompt& prompt) const {
  RETURN_IF_ERROR(check_size(prompt.text.size()));
  return tokenizer_->encode(prompt.text, {.add_special_tokens = prompt.add_special_tokens});
}

Result<PromptEncoder::Ids> PromptEncoder::encode_chat(const ChatPrompt& prompt) const {
  if (!chat_template_) {
    return error(StatusCode::kUnsupported, "this model has no chat template; use /v1/completions");
  }
  RenderOptions options;
  options.add_generation_prompt = prompt.add_generation_prompt;
  options.continue_final_message = prompt.continue_final_message;
  options.tools = prompt.tools;
  options.extra = prompt.template_kwargs;
  ASSIGN_OR_RETURN(const std::vector<Segment> segments, chat_template_->render(prompt.messages, options));
  std::size_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.text.size();
  RETURN_IF_ERROR(check_size(bytes));
  // The template writes its own BOS.
  ASSIGN_OR_RETURN(Ids ids, tokenizer_->encode(segments, {.add_special_tokens = false}));
  return expand_media(ids, prompt.media, prompt.media_tokens, [this](const std::string& label) {
    return tokenizer_->encode(label, {.add_special_tokens = false, .parse_special = false});
  });
}

}  // namespace millrace
