#include "api/transcription_format.h"

#include <algorithm>

#include "api/transcript_text.h"
#include "base/json.h"

namespace millrace::api {
namespace {

// Models begin an answer with a space or end it with a line break now and then.
std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

void TranscriptionFormat::append_usage(std::string& out, const wire::Usage& usage) const {
  const int64_t text = std::max<int64_t>(0, usage.prompt_tokens - options_.audio_rows);
  out += fmt::format(
      R"(,"usage":{{"type":"tokens","input_tokens":{},"input_token_details":{{"text_tokens":{},"audio_tokens":{}}},)"
      R"("output_tokens":{},"total_tokens":{}}})",
      usage.prompt_tokens, text, options_.audio_rows, usage.completion_tokens,
      usage.prompt_tokens + usage.completion_tokens);
}

void TranscriptionFormat::events(const ChoiceState& choice, EventWriter& out) {
  // Space before the first word is dropped, as in the complete text.
  std::string_view fresh = choice.text;
  if (text_.empty()) fresh.remove_prefix(std::min(fresh.find_first_not_of(" \t\r\n"), fresh.size()));
  text_ += fresh;
  if (!fresh.empty()) {
    std::string& event = out.begin();
    event += R"({"type":"transcript.text.delta","delta":)";
    json_append_string(event, fresh);
    event += '}';
    out.end();
  }
  if (!choice.finish) return;
  std::string& event = out.begin();
  event += R"({"type":"transcript.text.done","text":)";
  json_append_string(event, trim(text_));
  append_usage(event, choice.usage);
  event += '}';
  out.end();
}

Status TranscriptionFormat::finish(const ChoiceState& choice) {
  if (options_.may_be_cut && choice.finish->reason == wire::FinishReason::kLength) return ok_status();
  return check_transcript_end(choice, options_.context_length);
}

std::string TranscriptionFormat::choice(const ChoiceState& choice) {
  if (options_.plain) return std::string(trim(choice.text)) + "\n";
  std::string out = R"({"text":)";
  json_append_string(out, trim(choice.text));
  return out;
}

std::string TranscriptionFormat::body(std::string choices, const wire::Usage& usage) {
  std::string out = std::move(choices);
  if (options_.plain) return out;
  append_usage(out, usage);
  return out + "}";
}

}  // namespace millrace::api
