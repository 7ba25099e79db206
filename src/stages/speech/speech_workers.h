// The workers that speak an answer, behind a stage `generate` whose requests have a SpeechRequest (wire/speech.h):
//
//   talk    ~> token deltas of the thinker,   ~> {"codes"}: I32 [frames, groups]
//              {"media_rows"} (stages/generating/speech_inputs.h)
//   vocode  ~> {"codes"}                      ~> to the client {"samples"}: F32 [n] in [-1, 1], modality "audio"
//
// `talk` is a GeneratingEngine over the talker: its tokens are the first codes of frames, its rows come from a
// TalkerRows. It begins with the prompt while the thinker still writes, and goes on as far as there is text. Both
// results are null: the chunks have everything.
//
// Thread safety: free functions; the workers: as in stages/worker.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "models/omni/code2wav.h"
#include "scheduler/options.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/model_options.h"
#include "stages/speech/speech_config.h"
#include "stages/worker.h"

namespace millrace {

inline constexpr const char* kCodesKey = "codes";
inline constexpr const char* kSamplesKey = "samples";
inline constexpr const char* kAudioModality = "audio";

// `weights_checksum`, here and below: of all bytes of the weights that were loaded.
struct LoadedTalker {
  std::unique_ptr<Runner> runner;  // with its row source
  uint64_t weights_checksum = 0;
};
struct TalkParts {
  SpeechConfig config;
  SchedulerOptions options;
  std::function<Result<LoadedTalker>(const LoadProgress&)> load;
};
std::unique_ptr<Worker> make_talk_worker(TalkParts parts);

struct LoadedVocoder {
  std::shared_ptr<const Code2Wav> model;
  std::shared_ptr<ThreadPool> pool;
  std::unique_ptr<kernels::Ops> ops;  // over the pool
  uint64_t weights_checksum = 0;
};
using LoadVocoder = std::function<Result<LoadedVocoder>(const LoadProgress&)>;
std::unique_ptr<Worker> make_vocode_worker(LoadVocoder load);

// From a model folder: what the workers load. KV memory is chosen for the talker as for any model without --kv-gib.
TalkParts talk_parts(const ModelOptions& options, const SpeechConfig& config);
LoadVocoder load_vocoder(const ModelOptions& options, const SpeechConfig& config);

}  // namespace millrace
