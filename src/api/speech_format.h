// SpeechFormat: the answers of /v1/audio/speech: the sound file by itself, complete or while it is made, or events
// speech.audio.delta and speech.audio.done, as OpenAI has them.
//
// WAV and bare samples are sent while they are made. Other files are complete before their first byte is sent: in
// events they are one delta.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "api/reply_format.h"
#include "media/audio_writer.h"
#include "stages/engine.h"

namespace millrace::api {

class SpeechFormat : public ReplyFormat {
 public:
  static bool sent_while_made(AudioFormat format) {
    return format == AudioFormat::kWav || format == AudioFormat::kPcm16;
  }

  // `events`: of a stream. Without them, the answer of a format that is sent while it is made is a stream of bytes, and
  // of others no stream.
  SpeechFormat(const SpeechFacts& facts, AudioFormat format, bool events);

  void events(const ChoiceState& choice, EventWriter& out) override;
  Status audio(std::span<const float> samples, EventWriter& out) override;
  // kCancelled: it was aborted, so the file is not complete. kInternal: it has no samples.
  Status finish(const ChoiceState& choice) override;
  std::string last_event() const override { return ""; }
  std::string choice(const ChoiceState& /*choice*/) override { return ""; }
  std::string body(std::string choices, const wire::Usage& usage) override;
  std::string content_type() const override { return std::string(audio_content_type(format_)); }
  std::string stream_type() const override { return events_ ? "" : content_type(); }

 private:
  void write(std::string_view bytes, EventWriter& out) const;

  const SpeechFacts& facts_;
  const AudioFormat format_;
  const bool events_;
  std::optional<AudioStream> stream_;  // of a format that is sent while it is made
  std::string file_;                   // of another one
  std::size_t samples_ = 0;            // so far
};

}  // namespace millrace::api
