#include "formats/same_config.h"

#include <fmt/ranges.h>

namespace millrace {
namespace {

// Remembers the first field that differs.
class Compare {
 public:
  template <typename T>
  void field(const char* name, const T& seen, const T& wanted) {
    if (!status_.ok() || seen == wanted) return;
    status_ = invalid_argument("config.json: {} is {}; wanted {}, as at the start of the server", name, seen, wanted);
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

void compare_rope(Compare& compare, const RopeConfig& seen, const RopeConfig& wanted) {
  compare.field("rope_theta", seen.theta, wanted.theta);
  compare.field("rope_scaling.rope_type", rope_type_name(seen.type), rope_type_name(wanted.type));
  compare.field("rope_scaling.factor", seen.factor, wanted.factor);
  compare.field("rope_scaling.low_freq_factor", seen.low_freq_factor, wanted.low_freq_factor);
  compare.field("rope_scaling.high_freq_factor", seen.high_freq_factor, wanted.high_freq_factor);
  compare.field("rope_scaling.original_max_position_embeddings", seen.original_max_position_embeddings,
                wanted.original_max_position_embeddings);
  compare.field("rope_scaling.attention_factor", seen.attention_factor, wanted.attention_factor);
  compare.field("rope_scaling.mrope_section", seen.mrope_section, wanted.mrope_section);
}

void compare_experts(Compare& compare, const ModelConfig& seen, const ModelConfig& wanted) {
  compare.field("num_experts", seen.num_experts, wanted.num_experts);
  compare.field("num_experts_per_tok", seen.experts_per_token, wanted.experts_per_token);
  compare.field("moe_intermediate_size", seen.moe_intermediate_size, wanted.moe_intermediate_size);
  compare.field("shared_expert_intermediate_size", seen.shared_expert_size, wanted.shared_expert_size);
  compare.field("norm_topk_prob", seen.norm_topk_prob, wanted.norm_topk_prob);
  compare.field("decoder_sparse_step", seen.decoder_sparse_step, wanted.decoder_sparse_step);
  compare.field("mlp_only_layers", seen.mlp_only_layers, wanted.mlp_only_layers);
}

void compare_vision(Compare& compare, const std::optional<VisionConfig>& seen,
                    const std::optional<VisionConfig>& wanted) {
  compare.field("the presence of vision_config", seen.has_value(), wanted.has_value());
  if (!seen || !wanted) return;
  compare.field("vision_config.depth", seen->depth, wanted->depth);
  compare.field("vision_config.hidden_size", seen->hidden_size, wanted->hidden_size);
  compare.field("vision_config.out_hidden_size", seen->out_hidden_size, wanted->out_hidden_size);
  compare.field("vision_config.deepstack_visual_indexes", seen->deepstack, wanted->deepstack);
  compare.field("image_token_id", seen->image_token_id, wanted->image_token_id);
  compare.field("video_token_id", seen->video_token_id, wanted->video_token_id);
  compare.field("vision_start_token_id", seen->vision_start_token_id, wanted->vision_start_token_id);
  compare.field("vision_end_token_id", seen->vision_end_token_id, wanted->vision_end_token_id);
  compare.field("whether vision_config is that of the start", *seen == *wanted, true);
}

void compare_audio(Compare& compare, const std::optional<AudioConfig>& seen, const std::optional<AudioConfig>& wanted) {
  compare.field("the presence of audio_config", seen.has_value(), wanted.has_value());
  if (!seen || !wanted) return;
  compare.field("audio_config.encoder_layers", seen->layers, wanted->layers);
  compare.field("audio_config.d_model", seen->d_model, wanted->d_model);
  compare.field("audio_config.output_dim", seen->output_dim, wanted->output_dim);
  compare.field("audio_config.n_window_infer", seen->n_window_infer, wanted->n_window_infer);
  compare.field("position_id_per_seconds", seen->position_id_per_seconds, wanted->position_id_per_seconds);
  compare.field("audio_token_id", seen->audio_token_id, wanted->audio_token_id);
  compare.field("audio_start_token_id", seen->audio_start_token_id, wanted->audio_start_token_id);
  compare.field("audio_end_token_id", seen->audio_end_token_id, wanted->audio_end_token_id);
  compare.field("whether audio_config is that of the start", *seen == *wanted, true);
}

}  // namespace

Status check_same_config(const ModelConfig& seen, const ModelConfig& wanted) {
  Compare compare;
  compare.field("architectures", architecture_name(seen.architecture), architecture_name(wanted.architecture));
  compare.field("hidden_size", seen.hidden_size, wanted.hidden_size);
  compare.field("intermediate_size", seen.intermediate_size, wanted.intermediate_size);
  compare.field("num_hidden_layers", seen.layers, wanted.layers);
  compare.field("num_attention_heads", seen.heads, wanted.heads);
  compare.field("num_key_value_heads", seen.kv_heads, wanted.kv_heads);
  compare.field("head_dim", seen.head_dim, wanted.head_dim);
  compare.field("vocab_size", seen.vocab_size, wanted.vocab_size);
  compare.field("max_position_embeddings", seen.max_position_embeddings, wanted.max_position_embeddings);
  // A step computes with a float, and a GGUF file holds one.
  compare.field("rms_norm_eps", static_cast<float>(seen.rms_norm_eps), static_cast<float>(wanted.rms_norm_eps));
  compare_rope(compare, seen.rope, wanted.rope);
  compare.field("tie_word_embeddings", seen.tie_word_embeddings, wanted.tie_word_embeddings);
  if (seen.mean_pooling) {
    compare.field("whether an embedding is the mean of all rows (1_Pooling/config.json)", *seen.mean_pooling,
                  wanted.mean_pooling.value_or(false));
  }
  compare.field("the presence of a head of labels", seen.score_head, wanted.score_head);
  compare.field("attention_bias", seen.qkv_bias, wanted.qkv_bias);
  compare.field("attention_bias", seen.o_proj_bias, wanted.o_proj_bias);
  compare.field("mlp_bias", seen.mlp_bias, wanted.mlp_bias);
  compare.field("the normalization of queries and keys", seen.qk_norm, wanted.qk_norm);
  compare.field("the sliding windows of the layers", seen.layer_window, wanted.layer_window);
  compare_experts(compare, seen, wanted);
  compare_vision(compare, seen.vision, wanted.vision);
  compare_audio(compare, seen.audio, wanted.audio);
  if (!seen.eos_token_ids.empty()) compare.field("eos_token_id", seen.eos_token_ids, wanted.eos_token_ids);
  return compare.status();
}

}  // namespace millrace
