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
  struct Options {
    int64_t audio_rows = 0;  // of the prompt, those that are audio
    int64_t context_length = 0;
    bool may_be_cut = false;  // the client set the most tokens
    bool plain = false;       // the text alone
  };
  explicit TranscriptionFormat(const Options& options) : options_(options) {}

  void events(const ChoiceState& choice, EventWriter& out) override;
  // As check_transcript_end(); a cut that the client asked for is none.
  Status finish(const ChoiceState& choice) override;
  std::string choice(const ChoiceState& choice) override;
  std::string body(std::string choices, const wire::Usage& usage) override;
  std::string content_type() const override {
    return options_.plain ? "text/plain; charset=utf-8" : "application/json";
  }

 private:
  void append_usage(std::string& out, const wire::Usage& usage) const;

  const Options options_;
  std::string text_;  // of a stream, so far
};

}  // namespace millrace::api
