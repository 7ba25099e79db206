// What the answers of chats and of /v1/audio/speech share of their audio, and ChatAudio: the member `audio` of a chat
// message and of its chunks.
//
// Owner: the format of the answer. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "api/speech_fields.h"
#include "api/spoken_turns.h"
#include "base/status.h"
#include "media/audio_writer.h"
#include "stages/engine.h"

namespace millrace::api {

// Of a stream of audio, not taken by the client: at most so much, or one chunk of samples; what comes next waits in the
// engine.
inline constexpr std::size_t kMaxUnsentAudioBytes = std::size_t{256} << 10;

// Samples as frames of codes, which are the tokens of audio: rounded.
int64_t audio_tokens(const SpeechFacts& facts, std::size_t samples);

// encode_audio(); samples that are no numbers are kInternal: the model made them.
Result<std::string> encode_output(std::span<const float> samples, const SpeechFacts& facts, AudioFormat format);

// `bytes` as a JSON string of base64.
void append_base64_string(std::string& out, std::string_view bytes);

class ChatAudio {
 public:
  ChatAudio(const ChatSpeech& speech, const SpeechFacts& facts, SpokenTurns& turns)
      : facts_(facts), turns_(turns), format_(speech.format), shows_text_(speech.text) {}

  // Streaming: the members of a "delta": of the first one, of a text, of samples, and of the last one, after which the
  // turn can be named. Errors: as encode_output().
  std::string opening() const;
  std::string text(std::string_view text);
  Result<std::string> samples(std::span<const float> samples);
  std::string closing();

  // Not streaming: makes the file, where there are samples. Errors: as encode_output(). After it, the members of the
  // "message".
  Status encode(std::span<const float> samples);
  std::string message(std::string_view text);

  int64_t tokens() const { return audio_tokens(facts_, samples_); }

 private:
  int64_t keep_turn();

  const SpeechFacts& facts_;
  SpokenTurns& turns_;
  const AudioFormat format_;
  const bool shows_text_;
  const std::string id_ = SpokenTurns::make_id();
  std::string transcript_, file_;
  std::size_t samples_ = 0;  // so far
};

}  // namespace millrace::api
