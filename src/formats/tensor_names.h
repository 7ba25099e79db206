// The names by which this engine knows the tensors of a model directory. Directories of vision-language models put a
// prefix before the names of the language model and of the vision tower, one in files of transformers 4.5x and later,
// another in older ones:
//
//   model.language_model.layers.0.*   language_model.model.layers.0.*   ->  model.layers.0.*
//   thinker.model.layers.0.*                                            ->  model.layers.0.*
//   lm_head.weight                    language_model.lm_head.weight     ->  lm_head.weight
//   model.visual.blocks.0.*           visual.blocks.0.*                 ->  visual.blocks.0.*
//   thinker.lm_head.weight, thinker.visual.*, thinker.audio_tower.*     ->  without "thinker."
//   layers.0.*, embed_tokens.weight, norm.weight (embedding models)     ->  with "model."
//
// A folder of Qwen3-Omni holds a second language model, the talker, which has these names where a store is opened for
// it:
//
//   talker.model.layers.0.*   ->  model.layers.0.*      talker.model.codec_embedding.*  ->  model.embed_tokens.*
//   talker.codec_head.*       ->  lm_head.*             all others as they are
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace millrace {

inline constexpr std::string_view kVisionPrefix = "visual.";
inline constexpr std::string_view kAudioPrefix = "audio_tower.";  // Qwen3-Omni's, as the two below
inline constexpr std::string_view kTalkerPrefix = "talker.";
inline constexpr std::string_view kCode2WavPrefix = "code2wav.";
inline constexpr std::string_view kScoreHeadName = "score.weight";  // of a classifier (formats/reranker_config.h)

// Whether a tensor is of a part of Qwen3-Omni that its text and vision models do not use.
inline bool is_of_omni_part(std::string_view name) {
  return name.starts_with(kAudioPrefix) || name.starts_with(kTalkerPrefix) || name.starts_with(kCode2WavPrefix);
}

inline constexpr std::string_view kThinkerPrefix = "thinker.";

// Which of a folder's language models a store is opened for.
enum class FolderPart : uint8_t { kModel, kTalker };

inline std::string talker_tensor_name(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {
      {"talker.model.codec_embedding.", "model.embed_tokens."},
      {"talker.model.", "model."},
      {"talker.codec_head.", "lm_head."}};
  for (const auto& [prefix, plain] : kPrefixes) {
    if (name.starts_with(prefix)) return std::string(plain) + std::string(name.substr(prefix.size()));
  }
  return std::string(name);
}

inline std::string plain_tensor_name(std::string_view name, FolderPart part = FolderPart::kModel) {
  if (part == FolderPart::kTalker) return talker_tensor_name(name);
  constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {{"model.language_model.", "model."},
                                                                         {"language_model.", ""},
                                                                         {"model.visual.", kVisionPrefix},
                                                                         {"layers.", "model.layers."},
                                                                         {"embed_tokens.", "model.embed_tokens."},
                                                                         {"norm.", "model.norm."},
                                                                         {kThinkerPrefix, ""}};
  for (const auto& [prefix, plain] : kPrefixes) {
    if (name.starts_with(prefix)) return std::string(plain) + std::string(name.substr(prefix.size()));
  }
  return std::string(name);
}

}  // namespace millrace
