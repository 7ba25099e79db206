// TranscriptionFormat: the answers of /v1/audio/transcriptions and /v1/audio/translations, as OpenAI has them: JSON,
// plain text, or events transcript.text.delta and transcript.text.done.
//
// Owner: the Reply. Thread safety: as ReplyFormat.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/reply_format.h"

namespace millrace::api {

class TranscriptionFormat : public ReplyFormat {
 public:
  // `audio_rows`: of the prompt, those that are audio. `plain`: the text alone.
  TranscriptionFormat(int64_t audio_rows, bool plain) : audio_rows_(audio_rows), plain_(plain) {}

  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;
  std::string content_type() const override { return plain_ ? "text/plain; charset=utf-8" : "application/json"; }

 private:
  void append_usage(std::string& out, const wire::Usage& usage) const;

  const int64_t audio_rows_;
  const bool plain_;
  std::string text_;  // of a stream, so far
};

}  // namespace millrace::api
