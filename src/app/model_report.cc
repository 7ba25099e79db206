#include "app/model_report.h"

#include <cstdio>
#include <map>

#include "app/units.h"
#include "runner/kv_pages.h"

namespace millrace {
namespace {

std::string dtype_summary(const WeightStore& store) {
  std::map<std::string_view, uint64_t> bytes;
  for (const std::string& name : store.names()) {
    const SafetensorsEntry* entry = store.find(name);
    bytes[dtype_name(entry->dtype)] += entry->end - entry->begin;
  }
  std::string text;
  for (const auto& [name, count] : bytes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(count));
  return text;
}

std::string attention_text(const ModelConfig& c) {
  return fmt::format("{} heads x {}, {} KV heads{}{}", c.heads, c.head_dim, c.kv_heads, c.qk_norm ? ", QK norm" : "",
                     c.qkv_bias ? ", QKV bias" : "");
}

}  // namespace

void print_row(const char* name, const std::string& value) { std::printf("  %-22s %s\n", name, value.c_str()); }

void print_model(const ModelDir& dir, const WeightStore& store) {
  const ModelConfig& c = dir.config;
  std::printf("%s\n", dir.path.c_str());
  print_row("architecture", std::string(architecture_name(c.architecture)));
  const bool towers = c.vision || c.audio;  // which the configuration's formula does not count
  const int64_t parameters = towers ? store.total_elements() : parameter_count(c);
  print_row("parameters", fmt::format("{} ({})", count_text(parameters), parameters));
  if (towers) print_row("takes", c.audio ? "text, pictures and audio" : "text and pictures");
  print_row("weights", fmt::format("{} in {} file{} ({})", bytes_text(store.total_bytes()), store.shard_count(),
                                   store.shard_count() == 1 ? "" : "s", dtype_summary(store)));
  print_row("layers", fmt::format("{}, hidden {}, intermediate {}", c.layers, c.hidden_size, c.intermediate_size));
  print_row("attention", attention_text(c));
  print_row("vocabulary", fmt::format("{}, {} head", c.vocab_size, c.tie_word_embeddings ? "tied" : "own"));
  print_row("context length", fmt::format("{} tokens", c.max_position_embeddings));
  print_row("rope", fmt::format("{}, theta {}", rope_type_name(c.rope.type), c.rope.theta));
  for (const char* name : {"f32", "bf16", "f16", "int8"}) {
    const auto dtype = kv_dtype_from_name(name);
    if (!dtype.ok()) continue;
    const auto token = static_cast<uint64_t>(kv_page_bytes(c, {0, c.layers}, 1, *dtype));
    print_row(name == std::string("f32") ? "KV cache" : "",
              fmt::format("{:<4} {} a token, {} for a whole context", name, bytes_text(token),
                          bytes_text(token * static_cast<uint64_t>(c.max_position_embeddings))));
  }
}

Status check_model(const ModelDir& dir, const std::shared_ptr<WeightStore>& store, LayerRange layers) {
  return load_model(dir.config, store, layers, 1).status();
}

}  // namespace millrace
