#include "api/audio_output.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "api/base64.h"
#include "api/reply_format.h"
#include "base/json.h"

namespace millrace::api {

int64_t audio_tokens(const SpeechFacts& facts, std::size_t samples) {
  CHECK(facts.sample_rate > 0);
  return std::llround(static_cast<double>(samples) * facts.frame_rate / facts.sample_rate);
}

Result<std::string> encode_output(std::span<const float> samples, const SpeechFacts& facts, AudioFormat format) {
  Result<std::string> bytes = encode_audio(samples, facts.sample_rate, format);
  if (bytes.ok() || bytes.status().code() != StatusCode::kInvalidArgument) return bytes;
  return error(StatusCode::kInternal, "the audio of the answer: {}", bytes.status().message());
}

void append_base64_string(std::string& out, std::string_view bytes) {
  out += '"';
  append_base64(out, bytes.data(), bytes.size());
  out += '"';
}

int64_t ChatAudio::keep_turn() { return turns_.add(id_, std::move(transcript_), unix_seconds()); }

std::string ChatAudio::opening() const {
  return fmt::format(R"("role":"assistant","content":{},"audio":{{"id":"{}"}})", shows_text_ ? R"("")" : "null", id_);
}

std::string ChatAudio::text(std::string_view text) {
  transcript_ += text;
  const std::string quoted = json_quoted(text);
  std::string out;
  if (shows_text_) out += "\"content\":" + quoted + ",";
  return out + "\"audio\":{\"transcript\":" + quoted + "}";
}

Result<std::string> ChatAudio::samples(std::span<const float> samples) {
  samples_ += samples.size();
  ASSIGN_OR_RETURN(const std::string bytes, encode_output(samples, facts_, format_));
  std::string out = "\"audio\":{\"data\":";
  append_base64_string(out, bytes);
  return out + "}";
}

std::string ChatAudio::closing() { return fmt::format("\"audio\":{{\"expires_at\":{}}}", keep_turn()); }

Status ChatAudio::encode(std::span<const float> samples) {
  if (samples.empty()) return ok_status();  // of a stream, or of an answer that ended before its first sample
  samples_ = samples.size();
  ASSIGN_OR_RETURN(file_, encode_output(samples, facts_, format_));
  return ok_status();
}

std::string ChatAudio::message(std::string_view text) {
  transcript_ = text;
  const std::string quoted = json_quoted(text);
  std::string out = "\"content\":" + (shows_text_ ? quoted : "null") + ",\"audio\":{\"id\":\"" + id_ + "\",\"data\":";
  append_base64_string(out, std::exchange(file_, {}));
  return out + fmt::format(",\"expires_at\":{},\"transcript\":{}}}", keep_turn(), quoted);
}

}  // namespace millrace::api
