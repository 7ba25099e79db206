#include "api/transcription_format.h"

#include <algorithm>

#include "api/transcript_text.h"
#include "base/json.h"

namespace millrace::api {

void TranscriptionFormat::append_usage(std::string& out, const wire::Usage& usage) const {
  const int64_t text = std::max<int64_t>(0, usage.prompt_tokens - options_.audio_rows);
  out += fmt::format(
      R"(,"usage":{{"type":"tokens","input_tokens":{},"input_token_details":{{"text_tokens":{},"audio_tokens":{}}},)"
      R"("output_tokens":{},"total_tokens":{}}})",
      usage.prompt_tokens, text, options_.audio_rows, usage.completion_tokens,
      usage.prompt_tokens + usage.completion_tokens);
}

void TranscriptionFormat::events(const ChoiceState& choice, EventWriter& out) {
  const std::string_view fresh = append_transcript(text_, choice.text);
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
  json_append_string(event, trimmed_transcript(text_));
  append_usage(event, choice.usage);
  event += '}';
  out.end();
}

Status TranscriptionFormat::finish(const ChoiceState& choice) {
  if (options_.may_be_cut && choice.finish->reason == wire::FinishReason::kLength) return ok_status();
  return check_transcript_end(choice, options_.context_length);
}

std::string TranscriptionFormat::choice(const ChoiceState& choice) {
  if (options_.plain) return std::string(trimmed_transcript(choice.text)) + "\n";
  std::string out = R"({"text":)";
  json_append_string(out, trimmed_transcript(choice.text));
  return out;
}

std::string TranscriptionFormat::body(std::string choices, const wire::Usage& usage) {
  std::string out = std::move(choices);
  if (options_.plain) return out;
  append_usage(out, usage);
  return out + "}";
}

}  // namespace millrace::api
