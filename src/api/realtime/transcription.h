// Transcripts of what the client speaks: how a session wants them (`transcription` of its input audio), and the events
// of one, which is a request beside the responses.
//
// Owner: a Reply has its TranscriptFormat; that one and the session share the Transcript.
// Thread safety: TranscriptFormat is its Reply's, under whose lock it writes to the Transcript; the session reads that
// when the stream has ended. The rest: free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "api/realtime/realtime_lines.h"
#include "base/json.h"
#include "base/status.h"
#include "stages/engine.h"

namespace millrace::api {

struct TranscriptionConfig {
  std::string model;     // as the client named it
  std::string language;  // "": the model finds it
  std::string prompt;    // words about context and spelling
  friend bool operator==(const TranscriptionConfig&, const TranscriptionConfig&) = default;
};

// `object[key]`; null: none is wanted. kUnsupported: the model takes no audio, or another model is named.
Status read_transcription(const Json& object, const char* key, const std::string& where, const ModelFacts& model,
                          const std::string& model_name, std::optional<TranscriptionConfig>& out);
nlohmann::ordered_json transcription_json(const std::optional<TranscriptionConfig>& config);

// The one request of the transcript of `audio`.
Result<std::vector<GenerateRequest>> make_transcription(const PromptItem& audio, const TranscriptionConfig& config,
                                                        const ModelFacts& model);

struct Transcript {
  std::string item_id;
  int64_t audio_rows = 0;
  int64_t context_length = 0;  // of the model
  std::string text;
  bool done = false;  // complete, or its failure is written
};

// conversation.item.input_audio_transcription.failed.
std::string failed_line(const Transcript& transcript, const ApiError& error);

// The events of one: .delta, then .completed or .failed.
class TranscriptFormat : public RealtimeLines {
 public:
  explicit TranscriptFormat(std::shared_ptr<Transcript> transcript) : transcript_(std::move(transcript)) {}

  void events(const ChoiceState& choice, EventWriter& out) override;
  std::string error_event(const ApiError& error) const override;
  http::Response error_response(const ApiError& error) const override;

 private:
  const std::shared_ptr<Transcript> transcript_;
};

}  // namespace millrace::api
