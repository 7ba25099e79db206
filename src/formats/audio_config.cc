#include "formats/audio_config.h"

#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/model_config.h"
#include "formats/safetensors.h"

namespace millrace {
namespace {

using namespace config_fields;

Status read_sizes(const Json& root, AudioConfig& out) {
  RETURN_IF_ERROR(read_int(root, "num_mel_bins", 128, 1, kMaxAudioMelBins, out.mel_bins));
  RETURN_IF_ERROR(read_int(root, "encoder_layers", 32, 1, kMaxAudioLayers, out.layers));
  RETURN_IF_ERROR(read_int(root, "encoder_attention_heads", 20, 1, kMaxHeads, out.heads));
  RETURN_IF_ERROR(read_int(root, "encoder_ffn_dim", 5120, 1, kMaxIntermediateSize, out.ffn));
  // Half of a position's values are sines, whose wavelengths are spread over d_model / 2 - 1 steps.
  RETURN_IF_ERROR(read_int(root, "d_model", 1280, 4, kMaxHiddenSize, out.d_model));
  if (out.d_model % (2 * out.heads) != 0) {
    return invalid_argument("d_model is {}; wanted a multiple of 2 times encoder_attention_heads, which is {}",
                            out.d_model, out.heads);
  }
  RETURN_IF_ERROR(read_int(root, "output_dim", 3584, 1, kMaxHiddenSize, out.output_dim));
  RETURN_IF_ERROR(read_int(root, "downsample_hidden_size", 480, 1, kMaxAudioConvChannels, out.downsample_hidden_size));
  return read_int(root, "max_source_positions", 1500, kMinAudioSourcePositions, kMaxPositions,
                  out.max_source_positions);
}

Status read_windows(const Json& root, AudioConfig& out) {
  RETURN_IF_ERROR(read_int(root, "n_window", 100, 1, kMaxAudioWindow, out.n_window));
  if (out.n_window != kServedAudioWindow) {
    return error(StatusCode::kUnsupported, "n_window is {}; wanted {}: rows are counted for chunks of {} frames",
                 out.n_window, kServedAudioWindow, 2 * kServedAudioWindow);
  }
  RETURN_IF_ERROR(read_int(root, "n_window_infer", 400, out.chunk_frames(), kMaxAudioWindow, out.n_window_infer));
  return read_int(root, "conv_chunksize", 500, 1, kMaxAudioConvChunks, out.conv_chunksize);
}

Status read_activation(const Json& root, AudioConfig& out) {
  std::string name = "gelu";
  RETURN_IF_ERROR(json_read(root, "activation_function", name));
  if (name != "gelu_pytorch_tanh" && name != "gelu") {
    return error(StatusCode::kUnsupported, "activation_function is {}; wanted gelu or gelu_pytorch_tanh",
                 quoted_name(name));
  }
  out.activation = name == "gelu" ? AudioActivation::kGelu : AudioActivation::kGeluTanh;
  return ok_status();
}

Status read_encoder(const Json& root, AudioConfig& out) {
  RETURN_IF_ERROR(read_sizes(root, out));
  RETURN_IF_ERROR(read_windows(root, out));
  return read_activation(root, out);
}

}  // namespace

Result<AudioConfig> parse_audio_config(const Json& root, int hidden_size, int vocab_size) {
  AudioConfig out;
  const Json* encoder = json_find(root, "audio_config");
  if (encoder == nullptr || !encoder->is_object()) {
    return invalid_argument("audio_config is {}; wanted an object",
                            encoder == nullptr ? "missing" : json_type_name(*encoder));
  }
  RETURN_IF_ERROR(read_encoder(*encoder, out).with_prefix("audio_config"));
  if (out.output_dim != hidden_size) {
    return invalid_argument("audio_config: output_dim is {}; wanted the language model's hidden_size, {}",
                            out.output_dim, hidden_size);
  }
  RETURN_IF_ERROR(
      read_int(root, "position_id_per_seconds", 25, 1, kMaxPositionsPerSecond, out.position_id_per_seconds));
  RETURN_IF_ERROR(read_int(root, "audio_token_id", 151646, 0, vocab_size - 1, out.audio_token_id));
  RETURN_IF_ERROR(read_int(root, "audio_start_token_id", 151647, 0, vocab_size - 1, out.audio_start_token_id));
  // The class has no default for this one.
  RETURN_IF_ERROR(read_int(root, "audio_end_token_id", {}, 0, vocab_size - 1, out.audio_end_token_id));
  return out;
}

}  // namespace millrace
