#include "api/transcription_prompt.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "http/message.h"

namespace millrace::api {
namespace {

constexpr std::size_t kShownLanguageBytes = 64;

// ISO 639-1 as clients send it, and its name in the instruction: the languages that Qwen3-Omni understands.
constexpr std::pair<std::string_view, std::string_view> kLanguages[] = {
    {"en", "English"}, {"zh", "Chinese"},    {"ko", "Korean"},     {"ja", "Japanese"}, {"de", "German"},
    {"ru", "Russian"}, {"it", "Italian"},    {"fr", "French"},     {"es", "Spanish"},  {"pt", "Portuguese"},
    {"ms", "Malay"},   {"nl", "Dutch"},      {"id", "Indonesian"}, {"tr", "Turkish"},  {"vi", "Vietnamese"},
    {"ar", "Arabic"},  {"yue", "Cantonese"}, {"ur", "Urdu"}};

}  // namespace

Result<std::string> transcription_instruction(const std::string& language, const std::string& where) {
  if (language.empty()) return std::string("Transcribe the audio into text.");
  std::string known;
  for (const auto& [code, name] : kLanguages) {
    if (http::equals_ignore_case(language, code) || http::equals_ignore_case(language, name)) {
      return fmt::format("Transcribe the {} audio into text.", name);
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", code);
  }
  return invalid_argument("{} is '{}'; wanted one of {}", where, language.substr(0, kShownLanguageBytes), known);
}

std::string transcription_context(const std::string& words) {
  return fmt::format("\nIts context and spelling: {}", words);
}

ChatPrompt transcription_prompt(PromptMediaList media, const std::string& instruction, const ModelFacts& model) {
  ChatPrompt prompt;
  prompt.source_bytes = media->front().media.bytes.bytes.size();
  prompt.media = std::move(media);
  prompt.media_tokens = MediaTokens(model.media);
  prompt.messages = ChatValue(
      Json::array({{{"role", "user"},
                    {"content", Json::array({{{"type", "audio"}}, {{"type", "text"}, {"text", instruction}}})}}}));
  if (model.reasoning_dialect != wire::ReasoningDialect::kNone) {
    prompt.template_kwargs = ChatValue(Json{{"enable_thinking", false}});
  }
  return prompt;
}

}  // namespace millrace::api
