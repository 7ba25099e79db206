// PromptEncoder: a prompt as the api or a pipeline's payload gives it, to ids. A conversation is rendered by the
// model's chat template (user text marked as untrusted, so it cannot forge a special token), then encoded.
//
// Owner: a TokenizerStage, or the worker `tokenize`. Thread safety: immutable after construction; encode() from any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "stages/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace {

class PromptEncoder {
 public:
  using Ids = std::vector<int32_t>;

  // max_prompt_bytes: texts longer than this are refused before they are encoded (kTooLarge).
  PromptEncoder(std::shared_ptr<const Tokenizer> tokenizer, std::optional<ChatTemplate> chat_template,
                std::size_t max_prompt_bytes);

  // kInvalidArgument, kTooLarge; kUnsupported: a conversation, and the model has no chat template.
  Result<Ids> encode(const Prompt& prompt) const;
  // kInvalidArgument names the first id that the vocabulary has not.
  Status check_ids(const Ids& ids) const;
  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  Result<Ids> encode_text(const TextPrompt& prompt) const;
  Result<Ids> encode_chat(const ChatPrompt& prompt) const;
  Status check_size(std::size_t bytes) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  std::size_t max_prompt_bytes_;
};

}  // namespace millrace
