// A model in GGUF: one file, or the shards NAME-00001-of-0000N.gguf of one, as config and tensors with the names and
// row order that a Hugging Face folder of the same model has.
//
// What would change the results and is not implemented is refused by the name of its key (kUnsupported); so is every
// key of the architecture that this build does not know.
//
// Owner: the code that opened it; the headers point into the mapped files. Thread safety: const functions from any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/mapped_file.h"
#include "formats/model_config.h"

namespace millrace {

inline constexpr int kMaxGgufShards = 1024;
inline constexpr std::size_t kMaxGgufFolderEntries = 1u << 16;  // looked at, to find the one file

struct GgufFile {
  MappedFile file;
  GgufHeader header;
};

class GgufModel {
 public:
  // `path` is a file, any shard of several. Errors name the file: those of parse_gguf, kNotFound (a shard is missing),
  // kInvalidArgument (shards that do not belong together).
  static Result<GgufModel> open(const std::string& path, MapMode mode = MapMode::kMap);

  const std::string& path() const { return files_[0].file.path(); }
  const GgufHeader& header() const { return files_[0].header; }  // the metadata: of the first shard
  const std::vector<GgufFile>& files() const { return files_; }
  std::vector<GgufFile> take_files() && { return std::move(files_); }
  const GgufTensor* find_tensor(std::string_view name) const;
  // Its bytes; `tensor` is one of this model.
  std::span<const std::byte> bytes_of(std::string_view name) const;

 private:
  Status open_shards(const std::string& first, int count, MapMode mode);
  std::vector<GgufFile> files_;
};

// The GGUF file that `path` means: itself where it is a file that ends with .gguf, or the one file (or set of shards)
// of a folder without safetensors; files of towers (formats/gguf_vision.h) do not count. nullopt: a Hugging Face
// folder, or nothing. kInvalidArgument: several to choose from.
Result<std::optional<std::string>> find_gguf(const std::string& path);

// The same values as those of the folder that the file was made from, as far as the format has them; of a
// vision-language model with those of the tower beside it. Errors name path and key.
Result<ModelConfig> gguf_model_config(const GgufModel& model);
Result<GenerationDefaults> gguf_generation_defaults(const GgufModel& model, const ModelConfig& config);

// "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". Names that are not in the table stay as they are.
// The stacked experts "blk.3.ffn_up_exps.weight" become "model.layers.3.mlp.experts.{}.up_proj.weight", with {} in it.
std::string hf_tensor_name(std::string_view gguf_name);
std::string gguf_tensor_name(std::string_view hf_name);

// Query heads (or KV heads) by which the rows of this tensor are permuted for interleaved RoPE; 0: they are not.
// `hf_name` is one of a model of architecture llama.
int rope_permuted_heads(const ModelConfig& config, std::string_view hf_name);

// The factors by which llama3 scaling divides the frequencies, one for each of head_dim / 2: what rope_freqs.weight
// holds.
std::vector<float> llama3_rope_factors(const RopeConfig& rope, int head_dim);
// The llama3 parameters whose factors these are; nullopt where none of the published ones fit.
std::optional<RopeConfig> llama3_rope_of(const std::vector<float>& factors, double theta, int head_dim);

}  // namespace millrace
