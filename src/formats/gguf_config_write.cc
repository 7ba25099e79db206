// ModelConfig as the keys of a GGUF file: the inverse of gguf_config.cc. What the file cannot hold is refused.
#include <algorithm>
#include <cmath>

#include "formats/gguf_model.h"
#include "formats/gguf_writer.h"

namespace millrace {
namespace {

Status cannot(std::string_view what) {
  return error(StatusCode::kUnsupported, "config.json: {}; wanted what a GGUF file can hold", what);
}

Status check(const ModelConfig& c) {
  if (c.vision) return cannot("a vision tower");
  if (c.mean_pooling.value_or(false)) return cannot("mean pooling");
  if (c.score_head) return cannot("a head of labels");
  for (const int window : c.layer_window) {
    if (window != 0 && window < c.max_position_embeddings)
      return cannot(fmt::format("a window of {} positions", window));
  }
  if (c.num_experts > 0 && !c.norm_topk_prob) return cannot("norm_topk_prob is false");
  for (int i = 0; c.num_experts > 0 && i < c.layers; ++i) {
    if (!c.has_experts(i)) return cannot(fmt::format("layer {} has no experts and others have", i));
  }
  if (c.rope.type == RopeType::kLlama3) {
    // The factors are all that the file holds.
    const auto again = llama3_rope_of(llama3_rope_factors(c.rope, c.head_dim), c.rope.theta, c.head_dim);
    if (!again || again->low_freq_factor != c.rope.low_freq_factor || again->factor != c.rope.factor ||
        again->high_freq_factor != c.rope.high_freq_factor ||
        again->original_max_position_embeddings != c.rope.original_max_position_embeddings) {
      return cannot("llama3 rope scaling with parameters that do not follow from its factors");
    }
  }
  return ok_status();
}

}  // namespace

std::string_view gguf_architecture(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
    case Architecture::kMistral:
      return "llama";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kQwen3Vl:
    case Architecture::kQwen3VlMoe:
    case Architecture::kQwen3OmniMoe:
    case Architecture::kQwen3OmniTalker:
      break;
    case Architecture::kQwen3Moe:
      return "qwen3moe";
  }
  return "";
}

Status write_gguf_config(const ModelConfig& c, const GenerationDefaults& generation, GgufWriter& writer) {
  RETURN_IF_ERROR(check(c));
  const std::string arch(gguf_architecture(c.architecture));
  const auto u32 = [&](std::string_view name, int value) {
    writer.add_u32(fmt::format("{}.{}", arch, name), static_cast<uint32_t>(value));
  };
  const auto f32 = [&](std::string_view name, double value) {
    writer.add_f32(fmt::format("{}.{}", arch, name), static_cast<float>(value));
  };
  u32("block_count", c.layers);
  u32("context_length", c.max_position_embeddings);
  u32("embedding_length", c.hidden_size);
  u32("feed_forward_length", c.intermediate_size);
  u32("attention.head_count", c.heads);
  u32("attention.head_count_kv", c.kv_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  f32("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  f32("rope.freq_base", c.rope.theta);
  u32("rope.dimension_count", c.head_dim);
  u32("vocab_size", c.vocab_size);
  if (c.rope.type == RopeType::kLinear) {
    writer.add_string(arch + ".rope.scaling.type", "linear");
    f32("rope.scaling.factor", c.rope.factor);
  }
  if (c.num_experts > 0) {
    u32("expert_count", c.num_experts);
    u32("expert_used_count", c.experts_per_token);
    u32("expert_feed_forward_length", c.moe_intermediate_size);
  }
  const auto sampling = [&](std::string_view name, const std::optional<double>& value) {
    if (value) writer.add_f32(fmt::format("general.sampling.{}", name), static_cast<float>(*value));
  };
  sampling("temp", generation.temperature);
  sampling("top_p", generation.top_p);
  sampling("min_p", generation.min_p);
  sampling("penalty_repeat", generation.repetition_penalty);
  if (generation.top_k) writer.add_i32("general.sampling.top_k", *generation.top_k);
  return ok_status();
}

}  // namespace millrace
