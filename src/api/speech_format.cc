#include "api/speech_format.h"

#include <fmt/format.h>

#include <utility>

#include "api/audio_output.h"
#include "base/status.h"

namespace millrace::api {

SpeechFormat::SpeechFormat(const SpeechFacts& facts, AudioFormat format, bool events)
    : facts_(facts), format_(format), events_(events) {
  if (!sent_while_made(format)) return;
  Result<AudioStream> stream = AudioStream::create(facts.sample_rate, format);
  CHECK(stream.ok());
  stream_.emplace(std::move(*stream));
}

void SpeechFormat::write(std::string_view bytes, EventWriter& out) const {
  if (!events_) {
    out.bytes() += bytes;
    return;
  }
  std::string& event = out.begin();
  event += R"({"type":"speech.audio.delta","audio":)";
  append_base64_string(event, bytes);
  event += '}';
  out.end();
}

Status SpeechFormat::audio(std::span<const float> samples, EventWriter& out) {
  samples_ += samples.size();
  CHECK(stream_);  // other formats get all samples in finish()
  Result<std::string> bytes = stream_->write(samples);
  if (!bytes.ok()) return error(StatusCode::kInternal, "the audio of the answer: {}", bytes.status().message());
  write(*bytes, out);
  return ok_status();
}

Status SpeechFormat::finish(const ChoiceState& choice) {
  RETURN_IF_ERROR(check_not_aborted(choice, "audio"));
  if (!choice.samples.empty()) {
    samples_ = choice.samples.size();
    ASSIGN_OR_RETURN(file_, encode_output(choice.samples, facts_, format_));
  }
  if (samples_ == 0) return error(StatusCode::kInternal, "the model spoke nothing: its audio has no samples");
  return ok_status();
}

void SpeechFormat::events(const ChoiceState& choice, EventWriter& out) {
  if (!choice.finish || !events_) return;
  if (!stream_) write(std::exchange(file_, {}), out);
  const int64_t tokens = audio_tokens(facts_, samples_);
  out.begin() += fmt::format(
      R"({{"type":"speech.audio.done","usage":{{"input_tokens":{},"output_tokens":{},"total_tokens":{}}}}})",
      choice.usage.prompt_tokens, tokens, choice.usage.prompt_tokens + tokens);
  out.end();
}

std::string SpeechFormat::body(std::string /*choices*/, const wire::Usage& /*usage*/) {
  return std::exchange(file_, {});
}

}  // namespace millrace::api
