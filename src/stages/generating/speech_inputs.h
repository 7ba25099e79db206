// SpeechInputs: what the stage that speaks an answer gets of it, beside the token deltas that every stage behind
// `generate` gets: with the first delta the request's SpeechStart (wire/speech.h), and before the first one with tokens
// the hidden rows of the prompt's pictures and audio, in a chunk for that stage alone:
//
//   {"media_rows"}: F32 [rows of all media of the prompt, hidden size of the thinker]
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "stages/media/media_captures.h"
#include "stages/worker.h"
#include "wire/generation.h"

namespace millrace {

inline constexpr const char* kMediaRowsKey = "media_rows";

// Whether and how answers are spoken.
struct SpeechTarget {
  std::string stage;        // empty: they are not
  int layer = 0;            // of the thinker, whose input the talker wants of media rows; 0: it takes none
  int64_t hidden_size = 0;  // of the thinker
};

class SpeechInputs {
 public:
  explicit SpeechInputs(SpeechTarget target);

  // request.speech is set; its media still have their files. kUnsupported where nothing speaks.
  Status begin(const wire::TokenizedRequest& request);
  // The rows that the runner has to give, of a spoken request whose media were encoded; null: none.
  std::shared_ptr<RowCapture> capture(const wire::TokenizedRequest& request, const PromptInput* input,
                                      uint64_t weight_version);
  // For the request's first delta; absent where it is not spoken.
  Boxed<wire::SpeechStart> take_start(ReqId id);
  // Before each delta of the request goes out.
  void on_delta(const wire::TokenDelta& delta, Emit& emit);
  void drop(ReqId id) { spoken_.erase(id); }
  // Forgets the rows that are kept for later requests.
  void flush() { captures_.flush(); }
  // The weights that serve, after each step. Rows of the ones before are forgotten: a number may come again for others.
  void on_weights(uint64_t version);
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  struct Spoken {
    Boxed<wire::SpeechStart> start;               // until it is taken
    std::optional<MediaCaptures::Wanted> wanted;  // until its rows are sent
  };

  const SpeechTarget target_;
  MediaCaptures captures_;
  uint64_t weight_version_ = 0;  // of the last on_weights()
  std::unordered_map<ReqId, Spoken> spoken_;
};

}  // namespace millrace
