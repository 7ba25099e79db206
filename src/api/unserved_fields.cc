#include "api/unserved_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "api/sampling_fields.h"

namespace millrace::api {
namespace {

struct UnservedField {
  const char* key;
  std::vector<Json> neutral;  // the first one is named in the error; none: only null
};
using UnservedFields = std::vector<UnservedField>;

Status refuse(const Json& body, const char* key, std::span<const Json> neutral) {
  const Json* seen = json_find(body, key);
  if (!seen || std::find(neutral.begin(), neutral.end(), *seen) != neutral.end()) return ok_status();
  if (neutral.empty()) return error(StatusCode::kUnsupported, "{} is not supported; leave it out", key);
  return error(StatusCode::kUnsupported, "{} is not supported; wanted {} or nothing", key, neutral.front().dump());
}

Status refuse_all(const Json& body, const UnservedFields& fields) {
  for (const UnservedField& field : fields) RETURN_IF_ERROR(refuse(body, field.key, field.neutral));
  return ok_status();
}

const Json kEmptyList = Json::array();
const Json kEmptyObject = Json::object();
// Of context_management: nothing is taken out of the conversation.
const Json kNoEdits = {{"edits", kEmptyList}};
const Json kKeptThinking = {{"edits", Json::array({{{"type", "clear_thinking_20251015"}, {"keep", "all"}}})}};

// How pictures and audio are read. The model's own processor configuration counts (docs/media.md).
constexpr const char* kMediaFields[] = {"mm_processor_kwargs", "media_io_kwargs", "images_config", "max_dynamic_patch",
                                        "min_dynamic_patch"};

// Of the chat and completions routes.
const UnservedFields kUnserved = {
    // OpenAI (api/tool_fields.h reads tools and tool_choice).
    {"suffix", {""}},
    {"functions", {kEmptyList}},
    {"function_call", {"none", "auto"}},
    {"web_search_options", {}},
    {"verbosity", {"medium"}},
    // Structured output (api/grammar_fields.h reads what is served).
    {"guided_whitespace_pattern", {}},
    // vLLM
    {"use_beam_search", {false}},
    {"allowed_token_ids", {}},
    {"bad_words", {kEmptyList}},
    {"logits_processors", {}},
    {"vllm_xargs", {}},
    {"prompt_embeds", {}},
    {"chat_template", {}},
    {"documents", {kEmptyList}},
    {"spaces_between_special_tokens", {true}},
    {"thinking_token_budget", {-1}},
    {"truncation_side", {"left"}},
    {"repetition_detection", {}},
    {"return_prompt_text", {false}},
    {"ec_transfer_params", {}},
    {"logprob_token_ids", {}},
    {"detokenize", {true}},
    {"watermarking", {false}},
    // SGLang
    {"lora_path", {}},
    {"session_params", {}},
    {"custom_logit_processor", {}},
    {"custom_params", {}},
    {"return_hidden_states", {false}},
    {"return_routed_experts", {false}},
    {"return_prompt_token_ids", {false}},
    {"return_meta_info", {false}},
    {"reasoning", {}},
    {"input_ids", {}},
    {"bootstrap_host", {}},
    {"bootstrap_port", {}},
    {"bootstrap_room", {}},
    {"disagg_prefill_dp_rank", {}},
    // llama.cpp
    {"lora", {kEmptyList}},
    {"grammar_lazy", {false}},
    {"reasoning_budget_tokens", {-1}},
    {"thinking_budget_tokens", {-1}},
    {"reasoning_control", {false}},
    {"generation_prompt", {""}},
    {"n_cmpl", {1}},
    {"t_max_predict_ms", {0, -1}},
    {"n_indent", {0}},
    {"n_probs", {0}},
    {"post_sampling_probs", {false}},
    {"samplers", {}},
    {"mirostat", {0}},
    {"typical_p", {1}},
    {"top_n_sigma", {-1}},
    {"adaptive_target", {-1}},
    {"dynatemp_range", {0}},
    {"xtc_probability", {0}},
    {"dry_multiplier", {0}},
    {"repeat_penalty", {1}},
    {"response_fields", {kEmptyList}},
};

}  // namespace

Status refuse_unless(const Json& body, const char* key, const Json& neutral) {
  return refuse(body, key, std::span(&neutral, neutral.is_null() ? 0 : 1));
}

Status refuse_penalty_window(const Json& object) {
  const auto is_set = [&object](const char* key, double neutral) {
    const Json* value = json_find(object, key);
    return value && *value != neutral;
  };
  std::optional<int64_t> window;
  RETURN_IF_ERROR(read_integer(object, "repeat_last_n", -1, INT32_MAX, window));
  const bool penalized = is_set("repeat_penalty", 1) || is_set("presence_penalty", 0) || is_set("frequency_penalty", 0);
  return penalized ? refuse_unless(object, "repeat_last_n", -1) : ok_status();
}

Status refuse_unserved_media(const Json& object) {
  for (const char* key : kMediaFields) RETURN_IF_ERROR(refuse(object, key, {}));
  return ok_status();
}

Status refuse_unserved_upload(const Json& fields) {
  static const UnservedFields kFields = {
      {"n", {1}},
      {"best_of", {1}},
      {"logprobs", {false}},
      {"top_logprobs", {0}},
      {"prompt_logprobs", {}},
      {"tools", {kEmptyList}},
      {"tool_choice", {"none", "auto"}},
      {"return_token_ids", {false}},
      {"return_tokens_as_token_ids", {false}},
      {"truncate_prompt_tokens", {}},
      {"echo", {false}},
      // The conversation and its template are this server's.
      {"chat_template_kwargs", {kEmptyObject}},
      {"reasoning_effort", {"none"}},
      {"enable_thinking", {false}},
      {"continue_final_message", {false}},
      {"add_generation_prompt", {true}},
  };
  RETURN_IF_ERROR(refuse_audio_output(fields));
  return refuse_all(fields, kFields);
}

Status refuse_unserved_embeddings(const Json& body) {
  static const UnservedFields kFields = {
      // vLLM
      {"messages", {}},
      {"embed_dtype", {"float32"}},
      {"endianness", {"native", "little"}},
      {"truncation_side", {"left"}},
      {"mm_processor_kwargs", {}},
      {"chat_template", {}},
      // SGLang
      {"lora_path", {}},
      {"image", {}},
  };
  return refuse_all(body, kFields);
}

Status refuse_unserved(const Json& body) {
  RETURN_IF_ERROR(refuse_unserved_media(body));
  return refuse_all(body, kUnserved);
}

Status refuse_audio_output(const Json& body) {
  static const UnservedFields kFields = {{"modalities", {Json::array({"text"})}}, {"audio", {}}};
  return refuse_all(body, kFields);
}

Status refuse_unserved_messages(const Json& body) {
  static const UnservedFields kFields = {
      {"container", {}},
      {"mcp_servers", {kEmptyList}},
      {"context_management", {kEmptyObject, kNoEdits, kKeptThinking}},
      {"compaction", {}},
      {"fallbacks", {kEmptyList}},
      {"thread", {}},
      // Of other dialects. The chat that the body becomes has none of these, so they are looked for here.
      {"stop", {kEmptyList}},  // stop_sequences
      {"max_completion_tokens", {}},
      {"max_output_tokens", {}},
      {"n_predict", {}},
      {"guided_whitespace_pattern", {}},
      {"vllm_xargs", {}},
  };
  RETURN_IF_ERROR(refuse_unserved_media(body));
  return refuse_all(body, kFields);
}

Status refuse_unserved_responses(const Json& body) {
  static const UnservedFields kFields = {
      {"truncation", {"disabled"}},
      {"context_management", {kEmptyList}},
      {"prompt", {}},
      {"moderation", {}},
      {"image", {}},
      {"access_programs", {}},
      // Of other dialects, as in messages.
      {"max_tokens", {}},  // max_output_tokens
      {"max_completion_tokens", {}},
      {"n_predict", {}},
      {"guided_whitespace_pattern", {}},
      {"previous_response", {}},
      {"previous_input_messages", {kEmptyList}},
      {"vllm_xargs", {}},
  };
  RETURN_IF_ERROR(refuse_unserved_media(body));
  return refuse_all(body, kFields);
}

Status refuse_unserved_ollama(const Json& body) {
  static const UnservedFields kFields = {
      {"suffix", {""}},
      {"template", {""}},
      {"context", {kEmptyList}},
      // Of models that draw pictures.
      {"width", {0}},
      {"height", {0}},
      {"steps", {0}},
  };
  RETURN_IF_ERROR(refuse_unserved_media(body));
  return refuse_all(body, kFields);
}

Status refuse_unserved_ollama_options(const Json& options) {
  static const UnservedFields kFields = {
      {"typical_p", {1}},
      {"tfs_z", {1}},
      {"mirostat", {0}},
      {"penalize_newline", {true}},
  };
  return refuse_all(options, kFields);
}

Status refuse_unserved_native(const Json& body) {
  static const UnservedFields kFields = {
      {"input_embeds", {}},
      {"positional_embed_overrides", {}},
      {"image_data", {kEmptyList}},
      {"video_data", {kEmptyList}},
      {"audio_data", {kEmptyList}},
      {"session_params", {}},
      {"lora_path", {}},
      {"lora_id", {}},
      {"custom_logit_processor", {}},
      {"return_hidden_states", {false}},
      {"return_routed_experts", {false}},
      {"return_sampling_mask", {false}},
      {"return_entropy", {false}},
      {"return_indexer_topk", {false}},
      {"return_flat_raw_top_logprobs", {false}},
      {"return_flat_raw_top_logprobs_b64", {false}},
      {"return_prompt_token_ids", {false}},
      {"multi_item_delimiter_indices", {}},
      {"max_thinking_tokens", {}},
      {"background", {false}},
      {"bootstrap_host", {}},
      {"bootstrap_port", {}},
      {"bootstrap_room", {}},
      {"bootstrap_pair_key", {}},
      {"decode_tp_size", {}},
      {"disagg_prefill_dp_rank", {}},
  };
  return refuse_all(body, kFields);
}

Status refuse_unserved_sampling(const Json& params) {
  static const UnservedFields kFields = {
      {"stream_interval", {}},
      {"custom_params", {kEmptyObject}},
      {"spaces_between_special_tokens", {true}},
  };
  return refuse_all(params, kFields);
}

Status refuse_unserved_tokenize(const Json& body) {
  RETURN_IF_ERROR(refuse_unserved_media(body));
  static const UnservedFields kFields = {
      // vLLM
      {"return_token_strs", {false}},
      {"chat_template", {}},
      {"documents", {kEmptyList}},
      // llama.cpp
      {"parse_special", {true}},
  };
  return refuse_all(body, kFields);
}

}  // namespace millrace::api
