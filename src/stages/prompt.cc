#include "stages/prompt.h"

#include "stages/prompt_encoding.h"

namespace millrace {

std::size_t prompt_bytes(const Prompt& prompt) {
  if (const auto* text = std::get_if<TextPrompt>(&prompt)) return text->text.size();
  if (const auto* ids = std::get_if<TokenPrompt>(&prompt)) return ids->ids.size() * sizeof(int32_t);
  if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) return chat->source_bytes;
  std::size_t bytes = 0;
  for (const Segment& segment : std::get<SegmentPrompt>(prompt).segments) bytes += segment.text.size();
  return bytes;
}

SharedPrompt::SharedPrompt(Prompt prompt)
    : prompt_(std::make_shared<const Prompt>(std::move(prompt))), encoding_(std::make_shared<PromptEncoding>()) {}

}  // namespace millrace
