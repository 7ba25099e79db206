// The talker of Qwen3-Omni, as config.json describes it (talker_config): a language model over codes of sound, and a
// small one beside it, the code predictor, that completes each frame. Range-checked like everything in
// formats/model_config.h; defaults are those of transformers 5.12's classes.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/model_config.h"

namespace millrace {

inline constexpr int kMaxCodeGroups = 64;
inline constexpr std::size_t kMaxSpeakers = 1024;

// Ids of the thinker's vocabulary by which the talker finds what to speak: those that begin a turn and the role behind
// it, and the texts that stand beside its codes.
struct SpokenTurnIds {
  int32_t im_start = 0, system = 0, user = 0, assistant = 0;
  int32_t tts_pad = 0, tts_bos = 0, tts_eos = 0;

  friend bool operator==(const SpokenTurnIds&, const SpokenTurnIds&) = default;
};

struct TalkerConfig {
  ModelConfig text;  // the talker: Qwen3-MoE with a shared expert; its tensors are those of FolderPart::kTalker
  // The code predictor's layers: dense Qwen3. vocab_size: of each of its codebooks.
  ModelConfig predictor;
  int code_groups = 0;          // codes of a frame: the talker's, and so many less one of the predictor
  int thinker_hidden_size = 0;  // of the rows that are projected
  int accept_hidden_layer = 0;  // layers of the thinker behind which the rows of media are taken
  int merge_size = 2;           // edge of the patches of a picture that make a row

  SpokenTurnIds turns;

  // Ids of the talker's vocabulary.
  int32_t codec_eos = 0, codec_nothink = 0, codec_think_bos = 0, codec_think_eos = 0, codec_pad = 0, codec_bos = 0;
  std::map<std::string, int32_t, std::less<>> speakers;  // names in lower case
};

// From the text of a complete model's config.json; `path` stands in the messages. kUnsupported for a value that would
// change the sound and is not served.
Result<TalkerConfig> parse_talker_config(std::string_view text, std::string_view path);

}  // namespace millrace
