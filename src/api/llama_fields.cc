#include "api/llama_fields.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "api/prompts.h"
#include "api/routes.h"
#include "api/tool_fields.h"
#include "api/unserved_fields.h"
#include "base/ordered_json.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A field that has another name in completions.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {{"n_predict", "max_tokens"},
                                                                      {"repeat_penalty", "repetition_penalty"}};

// An error of a completion's field, by the name that the client gave it.
Status with_llama_name(const Status& status, const Json& body) {
  for (const auto& [name, field] : kRenamed) {
    if (status.ok() || !json_find(body, name) || !status.message().starts_with(std::string(field) + " ")) continue;
    return Status(status.code(), std::string(name) + status.message().substr(field.size()));
  }
  return status;
}

// [[5, 1.5], [7, false]], where false means never; or an object, as everywhere.
Status translate_bias(OrderedJson& completion) {
  const auto given = completion.find("logit_bias");
  if (given == completion.end() || !given->is_array()) return ok_status();
  Json biases = Json::object();  // searched at each pair, so not an ordered one
  for (std::size_t i = 0; i < given->size(); ++i) {
    const OrderedJson& pair = (*given)[i];
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_unsigned()) {
      return error(StatusCode::kUnsupported, "logit_bias[{}] is {}; wanted a token id and a number or false", i,
                   pair.dump().substr(0, 64));
    }
    biases[pair[0].dump()] = pair[1] == false ? Json(-kMaxLogitBias) : Json(pair[1]);
  }
  *given = OrderedJson(biases);
  return ok_status();
}

// Values that mean what an absent field means: no bound, and a random seed.
void drop_absent(OrderedJson& completion) {
  for (const auto& [name, absent] : {std::pair("n_predict", -1), {"seed", -1}}) {
    const auto value = completion.find(name);
    if (value != completion.end() && *value == absent) completion.erase(value);
  }
}

Result<OrderedJson> translate(const std::string& text) {
  auto completion = parse_ordered_json(text);
  for (const char* key : {"prompt", "repeat_last_n", "n_probs"}) completion.erase(key);
  drop_absent(completion);
  RETURN_IF_ERROR(translate_bias(completion));
  for (const auto& [name, field] : kRenamed) {
    const auto value = completion.find(name);
    if (value == completion.end()) continue;
    OrderedJson moved = std::move(*value);
    completion.erase(value);
    completion[field] = std::move(moved);
  }
  return completion;
}

}  // namespace

Result<LlamaFields> read_llama_fields(const Json& body, const std::string& text, const ModelFacts& model) {
  LlamaFields out;
  for (const char* key : {"n", "best_of"}) RETURN_IF_ERROR(refuse_unless(body, key, 1));
  RETURN_IF_ERROR(refuse_unless(body, "echo", false));
  RETURN_IF_ERROR(refuse_unless(body, "logprobs", false));  // of OpenAI: n_probs is this endpoint's
  RETURN_IF_ERROR(refuse_unless(body, "top_logprobs", 0));
  RETURN_IF_ERROR(refuse_tools(body));
  RETURN_IF_ERROR(refuse_penalty_window(body));
  ASSIGN_OR_RETURN(const OrderedJson completion, translate(text));
  const std::string translated = completion.dump();
  ASSIGN_OR_RETURN(const Json fields, parse_json(translated));
  SamplingDialect dialect = kOpenAiDialect;
  dialect.least_max_tokens = 0;  // the prompt is computed for the cache alone
  auto common = read_common(fields, translated, model, dialect);
  if (!common.ok()) return with_llama_name(common.status(), body);
  out.common = std::move(common).value();
  std::optional<int64_t> probabilities;
  RETURN_IF_ERROR(read_integer(body, "n_probs", 0, kMaxClientTopLogprobs, probabilities));
  out.n_probs = static_cast<int32_t>(probabilities.value_or(0));
  if (out.n_probs > 0) out.common.sampling.params.top_logprobs = out.n_probs;
  RETURN_IF_ERROR(json_read(body, "return_tokens", out.return_tokens));
  ASSIGN_OR_RETURN(out.prompts, read_prompts(body, "prompt", kMaxPrompts, model.vocab_size));
  const Json& prompt = *json_find(body, "prompt");
  out.list = prompt.is_array() && !prompt.front().is_number();
  return out;
}

std::string llama_settings(const SamplingFields& fields, const ModelFacts& model) {
  const wire::SamplingParams& params = fields.params;
  const OrderedJson out = {{"n_ctx", model.context_length},
                           {"n_predict", fields.max_tokens.value_or(-1)},
                           {"temperature", params.temperature},
                           {"top_k", params.top_k},
                           {"top_p", params.top_p},
                           {"min_p", params.min_p},
                           {"repeat_last_n", -1},
                           {"repeat_penalty", params.repetition_penalty},
                           {"presence_penalty", params.presence_penalty},
                           {"frequency_penalty", params.frequency_penalty},
                           {"stop", params.stop},
                           {"ignore_eos", params.ignore_eos},
                           {"n_probs", params.top_logprobs > 0 ? params.top_logprobs : 0}};
  return out.dump();
}

}  // namespace millrace::api
