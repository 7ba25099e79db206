#include "stages/speech/speech_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/json.h"
#include "base/log.h"
#include "formats/mapped_file.h"
#include "formats/same_config.h"
#include "formats/weights.h"

namespace millrace {
namespace {

constexpr uint64_t kMaxConfigBytes = 16u << 20;
constexpr std::string_view kTalkerHead = "talker.codec_head.weight";

// Codes of sound are the talker's ids below its special ones.
int32_t codes_of(const TalkerConfig& talker) { return std::max(0, talker.text.vocab_size - kTalkerSpecialIds); }

Status check_fits(const SpeechConfig& config) {
  const int codebook = config.vocoder.codebook_size;
  if (config.talker.code_groups != config.vocoder.quantizers) {
    return invalid_argument("code2wav_config: num_quantizers is {}; wanted the talker's num_code_groups, {}",
                            config.vocoder.quantizers, config.talker.code_groups);
  }
  if (codes_of(config.talker) < 1 || codes_of(config.talker) > codebook) {
    return invalid_argument(
        "talker_config: text_config: vocab_size is {}; wanted {} to {}, the vocoder's codes and {} more",
        config.talker.text.vocab_size, kTalkerSpecialIds + 1, codebook + kTalkerSpecialIds, kTalkerSpecialIds);
  }
  if (config.talker.predictor.vocab_size > codebook) {
    return invalid_argument("talker_config: code_predictor_config: vocab_size is {}; wanted at most {}, the vocoder's",
                            config.talker.predictor.vocab_size, codebook);
  }
  return ok_status();
}

// Whether the file has all parts, and does not turn the sound off.
Result<bool> speaks(const std::string& text, const std::string& path) {
  const auto root = parse_json(text);
  if (!root.ok()) return root.status().with_prefix(path);
  const Json* enabled = json_find(*root, "enable_audio_output");
  if (enabled != nullptr && enabled->is_boolean() && !enabled->get<bool>()) return false;
  return json_find(*root, "talker_config") != nullptr && json_find(*root, "code2wav_config") != nullptr;
}

// All fields of a talker but its two models.
auto turns_and_voices(const TalkerConfig& c) {
  return std::tie(c.code_groups, c.thinker_hidden_size, c.accept_hidden_layer, c.merge_size, c.turns, c.codec_eos,
                  c.codec_nothink, c.codec_think_bos, c.codec_think_eos, c.codec_pad, c.codec_bos, c.speakers);
}

}  // namespace

Result<std::optional<SpeechConfig>> read_speech_config(const ModelOptions& options) {
  if (options.speech == "off" || options.model.empty()) return std::optional<SpeechConfig>();
  const std::string path = options.model + "/config.json";
  ASSIGN_OR_RETURN(const bool found, file_exists(path));
  if (!found) return std::optional<SpeechConfig>();
  ASSIGN_OR_RETURN(const std::string text, read_small_file(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(const bool any, speaks(text, path));
  if (!any) return std::optional<SpeechConfig>();
  ASSIGN_OR_RETURN(const WeightStore store, WeightStore::open(options.model));
  if (store.find(kTalkerHead) == nullptr) {
    LOG_WARNING("{} describes a talker whose weights are not there: answers are text alone", path);
    return std::optional<SpeechConfig>();
  }
  SpeechConfig out;
  ASSIGN_OR_RETURN(out.talker, parse_talker_config(text, path));
  ASSIGN_OR_RETURN(out.vocoder, parse_code2wav_config(text, path));
  RETURN_IF_ERROR(check_fits(out).with_prefix(path));
  return std::optional<SpeechConfig>(std::move(out));
}

Status check_same_speech(const SpeechConfig& seen, const SpeechConfig& wanted) {
  RETURN_IF_ERROR(check_same_config(seen.talker.text, wanted.talker.text).with_prefix("talker_config"));
  RETURN_IF_ERROR(
      check_same_config(seen.talker.predictor, wanted.talker.predictor).with_prefix("code_predictor_config"));
  if (turns_and_voices(seen.talker) != turns_and_voices(wanted.talker)) {
    return invalid_argument(
        "config.json: talker_config has other ids, voices or sizes; wanted those of the start of the server");
  }
  if (seen.vocoder == wanted.vocoder) return ok_status();
  return invalid_argument("config.json: code2wav_config is another one; wanted that of the start of the server");
}

std::vector<int32_t> suppressed_codes(const TalkerConfig& config) {
  std::vector<int32_t> ids;
  for (int32_t id = codes_of(config); id < config.text.vocab_size; ++id) {
    if (id != config.codec_eos) ids.push_back(id);
  }
  return ids;
}

SpeechFacts speech_facts(const SpeechConfig& config) {
  SpeechFacts facts{.voices = {},
                    .sample_rate = kVocoderRate,
                    .frame_rate = static_cast<double>(kVocoderRate) / config.vocoder.samples_per_frame()};
  for (const auto& [name, id] : config.talker.speakers) facts.voices.push_back(name);
  return facts;
}

// hidden_states[0] of transformers are embeddings, and the last one has passed the final norm.
Result<SpeechTarget> speech_target(const SpeechConfig& config, const ModelConfig& thinker, const std::string& talker) {
  const int layer = config.talker.accept_hidden_layer;
  if (layer < 1 || layer >= thinker.layers) {
    return error(StatusCode::kUnsupported,
                 "talker_config: accept_hidden_layer is {}; wanted 1 to {}, between two layers of the thinker", layer,
                 thinker.layers - 1);
  }
  return SpeechTarget{.stage = talker, .layer = layer, .hidden_size = thinker.hidden_size};
}

}  // namespace millrace
