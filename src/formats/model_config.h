// config.json and generation_config.json of a Hugging Face model directory as typed, validated values.
//
// Everything here has been range-checked before it is returned, so that products of the sizes below fit an int64 and no
// later code allocates on the word of an unchecked file. What would change the results and is not implemented is
// refused (kUnsupported), never ignored. Reads the spelling of transformers 5 (rope_parameters, dtype) and the older
// one (rope_theta, rope_scaling, torch_dtype). Defaults of absent fields are those of transformers 5.12's config
// classes, which are the source of every rule here.
//
// Thread safety: values and free functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/audio_config.h"
#include "formats/vision_config.h"
#include "tensor/dtype.h"

namespace millrace {

inline constexpr uint64_t kMaxConfigFileBytes = 1u << 20;
inline constexpr int kMaxLayers = 1024;
inline constexpr int kMaxHiddenSize = 1 << 17;
inline constexpr int kMaxIntermediateSize = 1 << 20;
inline constexpr int kMaxHeads = 1024;
inline constexpr int kMaxHeadDim = 1024;
inline constexpr int kMaxVocabSize = 1 << 22;
inline constexpr int kMaxPositions = 1 << 26;
inline constexpr std::size_t kMaxStopIds = 64;
inline constexpr int kMaxExperts = 1024;

enum class Architecture : uint8_t {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kQwen3Moe,
  kQwen3Vl,
  kQwen3VlMoe,
  kQwen3OmniMoe,     // of the thinker
  kQwen3OmniTalker,  // a part of such a directory (formats/talker_config.h), never one by itself
};
std::string_view architecture_name(Architecture architecture);  // "LlamaForCausalLM", ...

enum class RopeType : uint8_t { kDefault, kLinear, kLlama3 };
std::string_view rope_type_name(RopeType type);  // "default", "linear", "llama3"

// Rotary position embedding. inv_freq itself is computed by models/.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                       // linear, llama3
  double low_freq_factor = 1.0;              // llama3
  double high_freq_factor = 4.0;             // llama3
  int original_max_position_embeddings = 0;  // llama3; 0 otherwise
  double attention_factor = 1.0;             // scales cos and sin; 1 for all three types
  // Of a rotary embedding with three axes (time, height, width), interleaved: how many frequencies each turns. All 0:
  // there is one axis.
  std::array<int, 3> mrope_section{};

  // The axis that frequency `index` turns by.
  int axis_of(int index) const {
    const int axis = index % 3;
    return axis != 0 && index < 3 * mrope_section[static_cast<std::size_t>(axis)] ? axis : 0;
  }
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  std::string model_type;  // "llama", ...
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;  // even; heads * head_dim may differ from hidden_size
  int vocab_size = 0;
  int max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  std::optional<bool> mean_pooling;  // the embedding of a text is the mean of its rows; none: the directory has no word
  bool score_head = false;           // a head of labels (score.weight) instead of one of the vocabulary
  bool qkv_bias = false;     // q_proj, k_proj, v_proj carry a bias (Qwen2 always; Llama and Qwen3 by attention_bias)
  bool o_proj_bias = false;  // o_proj carries a bias (Llama and Qwen3 by attention_bias)
  bool mlp_bias = false;     // gate_proj, up_proj, down_proj carry a bias (Llama by mlp_bias)
  bool qk_norm = false;      // RMSNorm over head_dim on q and k before RoPE (Qwen3)
  // One entry a layer: 0 = full attention, w > 0 = the query at position p sees keys p-w+1 .. p only.
  std::vector<int> layer_window;
  // Mixture of experts (Qwen3-MoE); num_experts == 0: every layer has one MLP of intermediate_size.
  int num_experts = 0;
  int experts_per_token = 0;         // 1 .. num_experts
  int moe_intermediate_size = 0;     // of each expert
  int shared_expert_size = 0;        // inner size of one more that every row goes to, weighted by a gate; 0: none
  bool norm_topk_prob = false;       // the chosen experts' probabilities are divided by their sum
  int decoder_sparse_step = 1;       // layer i has experts where i + 1 is a multiple of it ...
  std::vector<int> mlp_only_layers;  // ... and i is none of these (sorted)
  std::optional<DType> dtype;        // dtype or torch_dtype; what the files hold may differ
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  std::vector<int32_t> eos_token_ids;  // may be empty
  std::optional<VisionConfig> vision;  // of a vision-language model; the fields above are its language model's
  std::optional<AudioConfig> audio;    // of a model that takes sound; it has `vision` too

  int group_size() const { return heads / kv_heads; }  // query heads that share one KV head
  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  bool has_experts(int layer) const;  // whether this layer's MLP is a mixture of experts
};

// Sampling defaults that a model's author ships; absent fields stay empty.
struct GenerationDefaults {
  std::optional<double> temperature;         // [0, 2], as the OpenAI endpoints take it
  std::optional<double> top_p;               // (0, 1]
  std::optional<int> top_k;                  // >= 0; 0 = off
  std::optional<double> min_p;               // [0, 1]
  std::optional<double> repetition_penalty;  // (0, 2]
  std::vector<int32_t> eos_token_ids;        // generation_config.json's, else config.json's
  std::optional<int32_t> bos_token_id;       // likewise
  std::optional<int32_t> pad_token_id;       // likewise
  std::vector<std::string> not_followed;     // fields that change the text in transformers and do not here
};

// From the text of the files; `path` stands in the messages.
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view path);
// Starts from the ids in `model`.
Result<GenerationDefaults> parse_generation_config(std::string_view text, std::string_view path,
                                                   const ModelConfig& model);

// A checked model: what `millrace serve --model` starts from.
struct ModelDir {
  std::string path;
  std::string gguf;  // the file (or first shard) that holds everything; empty: a Hugging Face directory
  ModelConfig config;
  GenerationDefaults generation;  // from generation_config.json when there is one
};
// kNotFound (no such path, no config.json), kInvalidArgument (not a directory), or the files' errors.
Result<ModelDir> open_model_dir(const std::string& path);

// Numbers of the model as the config describes it, all experts included. A tied head is counted once.
int64_t parameter_count(const ModelConfig& config);
// Bytes of K and V that one token takes in all layers when they are stored as `dtype`.
int64_t kv_bytes_per_token(const ModelConfig& config, DType dtype);

}  // namespace millrace
