// Any text as config.json and as generation_config.json: refused, or values within the limits that the header promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "formats/model_config.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = millrace::parse_model_config(text, "fuzz");
  millrace::ModelConfig model;
  model.vocab_size = 300;
  if (config.ok()) {
    require(config->heads > 0 && config->kv_heads > 0 && config->heads % config->kv_heads == 0);
    require(config->head_dim > 0 && config->head_dim % 2 == 0 && config->head_dim <= millrace::kMaxHeadDim);
    require(config->layers <= millrace::kMaxLayers && config->vocab_size <= millrace::kMaxVocabSize);
    require(config->layer_window.size() == static_cast<std::size_t>(config->layers));
    require(config->rope.theta > 0 && config->rope.factor > 0 && config->rms_norm_eps > 0);
    require(millrace::parameter_count(*config) > 0);
    require(millrace::kv_bytes_per_token(*config, millrace::DType::kF32) > 0);
    model = *config;
  }
  const auto generation = millrace::parse_generation_config(text, "fuzz", model);
  if (generation.ok()) require(generation->eos_token_ids.size() <= millrace::kMaxStopIds);
  return 0;
}
