// generation_config.json, and a model directory as a whole.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "formats/config_fields.h"
#include "formats/gguf_model.h"
#include "formats/mapped_file.h"
#include "formats/model_config.h"
#include "formats/pooling_config.h"

namespace millrace {
namespace {

using namespace config_fields;

// A request without a temperature has the default, and the OpenAI endpoints refuse a larger one.
constexpr double kMaxTemperature = 2;

template <typename T>
Status read_optional_real(const Json& root, std::string_view key, double low, bool open_low, double high,
                          std::optional<T>& out) {
  if (json_find(root, key) == nullptr) return ok_status();
  double value = 0;
  RETURN_IF_ERROR(read_real(root, key, {}, low, open_low, high, value));
  out = value;
  return ok_status();
}

Status read_optional_int(const Json& root, std::string_view key, int low, int high, std::optional<int>& out) {
  if (json_find(root, key) == nullptr) return ok_status();
  int value = 0;
  RETURN_IF_ERROR(read_int(root, key, {}, low, high, value));
  out = value;
  return ok_status();
}

// Fields by which generate() of transformers makes another text or ends it elsewhere, with the number at which each
// does nothing (-1: there is none). null and what is empty are off for all; a boolean is 0 or 1.
struct OtherField {
  std::string_view name;
  double off;
};
constexpr OtherField kOtherFields[] = {{"bad_words_ids", 0},
                                       {"begin_suppress_tokens", 0},
                                       {"do_sample", 1},
                                       {"encoder_no_repeat_ngram_size", 0},
                                       {"encoder_repetition_penalty", 1},
                                       {"epsilon_cutoff", 0},
                                       {"eta_cutoff", 0},
                                       {"exponential_decay_length_penalty", 0},
                                       {"forced_bos_token_id", -1},
                                       {"forced_eos_token_id", -1},
                                       {"guidance_scale", 1},
                                       {"max_length", 20},
                                       {"max_new_tokens", -1},
                                       {"max_time", -1},
                                       {"min_length", 0},
                                       {"min_new_tokens", 0},
                                       {"no_repeat_ngram_size", 0},
                                       {"num_beams", 1},
                                       {"penalty_alpha", 0},
                                       {"remove_invalid_values", 0},
                                       {"sequence_bias", 0},
                                       {"stop_strings", 0},
                                       {"suppress_tokens", 0},
                                       {"top_h", 0},
                                       {"typical_p", 1},
                                       {"watermarking_config", 0}};

bool is_off(const Json& value, double off) {
  if (value.is_boolean()) return (value.get<bool>() ? 1 : 0) == off;
  if (value.is_number()) return value.get<double>() == off;
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

std::vector<std::string> fields_not_followed(const Json& root) {
  std::vector<std::string> out;
  for (const OtherField& field : kOtherFields) {
    const Json* value = json_find(root, field.name);
    if (value != nullptr && !is_off(*value, field.off)) out.emplace_back(field.name);
  }
  return out;
}

Result<GenerationDefaults> parse_generation(std::string_view text, const ModelConfig& model) {
  ASSIGN_OR_RETURN(const Json root, parse_object(text));
  GenerationDefaults out{
      .eos_token_ids = model.eos_token_ids, .bos_token_id = model.bos_token_id, .pad_token_id = model.pad_token_id};
  RETURN_IF_ERROR(read_optional_real(root, "temperature", 0, false, kMaxTemperature, out.temperature));
  RETURN_IF_ERROR(read_optional_real(root, "top_p", 0, true, 1, out.top_p));
  RETURN_IF_ERROR(read_optional_int(root, "top_k", 0, INT32_MAX, out.top_k));
  RETURN_IF_ERROR(read_optional_real(root, "min_p", 0, false, 1, out.min_p));
  RETURN_IF_ERROR(read_optional_real(root, "repetition_penalty", 0, true, 2, out.repetition_penalty));
  RETURN_IF_ERROR(read_ids(root, "eos_token_id", model.vocab_size, out.eos_token_ids));
  RETURN_IF_ERROR(read_id(root, "bos_token_id", model.vocab_size, out.bos_token_id));
  RETURN_IF_ERROR(read_id(root, "pad_token_id", model.vocab_size, out.pad_token_id));
  out.not_followed = fields_not_followed(root);
  return out;
}

Result<ModelDir> open_gguf_dir(const std::string& path, const std::string& gguf) {
  ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(gguf));
  ModelDir dir;
  dir.path = path;
  dir.gguf = gguf;
  ASSIGN_OR_RETURN(dir.config, gguf_model_config(model));
  ASSIGN_OR_RETURN(dir.generation, gguf_generation_defaults(model, dir.config));
  return dir;
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(std::string_view text, std::string_view path,
                                                   const ModelConfig& model) {
  return guarded<GenerationDefaults>(path, [&] { return parse_generation(text, model); });
}

Result<ModelDir> open_model_dir(const std::string& path) {
  struct stat info {};
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(path));
  if (gguf) return open_gguf_dir(path, *gguf);
  ASSIGN_OR_RETURN(const bool exists, file_exists(path));
  if (!exists) {
    return error(StatusCode::kNotFound,
                 "{}: No such file or directory; wanted a Hugging Face model directory, or a GGUF file (*.gguf)", path);
  }
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return invalid_argument("{}: is a file; wanted a Hugging Face model directory, or a GGUF file (*.gguf)", path);
  }
  const std::string config_path = path + "/config.json";
  ASSIGN_OR_RETURN(const bool has_config, file_exists(config_path));
  if (!has_config) {
    return error(StatusCode::kNotFound,
                 "no config.json in {}; wanted a Hugging Face model directory (config.json, model.safetensors, "
                 "tokenizer.json)",
                 path);
  }
  ModelDir dir;
  dir.path = path;
  ASSIGN_OR_RETURN(const std::string text, read_small_file(config_path, kMaxConfigFileBytes));
  ASSIGN_OR_RETURN(dir.config, parse_model_config(text, config_path));
  const std::string generation_path = path + "/generation_config.json";
  std::string generation = "{}";
  ASSIGN_OR_RETURN(const bool has_generation, file_exists(generation_path));
  if (has_generation) {
    ASSIGN_OR_RETURN(generation, read_small_file(generation_path, kMaxConfigFileBytes));
  }
  ASSIGN_OR_RETURN(dir.generation, parse_generation_config(generation, generation_path, dir.config));
  const auto pooling = read_pooling_config(path);
  if (pooling.ok() && pooling->given) dir.config.mean_pooling = pooling->mean;
  return dir;
}

}  // namespace millrace
