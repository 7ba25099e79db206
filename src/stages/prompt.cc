#include "stages/prompt.h"

#include "stages/prompt_encoding.h"

namespace millrace {

std::size_t prompt_bytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return text->text.size();
  if (const auto* ids = std::get_if<TokenPrompt>(&prompt)) return ids->ids.size() * sizeof(int32_t);
  return std::get<ChatPrompt>(prompt).source_bytes;
}

SharedPrompt::SharedPrompt(Prompt prompt)
    : prompt_(std::make_shared<const Prompt>(std::move(prompt))), encoding_(std::make_shared<PromptEncoding>()) {}

}  // namespace millrace
