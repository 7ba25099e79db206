#include "api/generate_fields.h"

#include <nlohmann/json.hpp>
#include <set>

#include "api/choices.h"
#include "api/grammar_fields.h"
#include "api/prompts.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "api/transfer_fields.h"
#include "api/unserved_fields.h"
#include "base/nearest.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

constexpr std::string_view kSamplingKeys[] = {"max_new_tokens",
                                              "min_new_tokens",
                                              "temperature",
                                              "top_p",
                                              "top_k",
                                              "min_p",
                                              "frequency_penalty",
                                              "presence_penalty",
                                              "repetition_penalty",
                                              "stop",
                                              "stop_token_ids",
                                              "stop_regex",
                                              "n",
                                              "json_schema",
                                              "regex",
                                              "ebnf",
                                              "structural_tag",
                                              "ignore_eos",
                                              "skip_special_tokens",
                                              "spaces_between_special_tokens",
                                              "no_stop_trim",
                                              "include_stop_str_in_output",
                                              "logit_bias",
                                              "sampling_seed",
                                              "stream_interval",
                                              "custom_params"};

// {key: the value of `key` for prompt i}, or {} where it has none: a list has one entry for each prompt of a batch.
Result<Json> of_prompt(const Json& body, const char* key, const GenerateFields& fields, std::size_t i) {
  Json out = Json::object();
  const Json* value = json_find(body, key);
  if (!value) return out;
  if (!value->is_array()) {
    out[key] = *value;
    return out;
  }
  if (!fields.batch) return invalid_argument("{} is of type array for a single prompt; wanted one value", key);
  if (value->size() != fields.prompts.size()) {
    return invalid_argument("{} has {} entries for {} prompts; wanted as many", key, value->size(),
                            fields.prompts.size());
  }
  out[key] = (*value)[i];
  return out;
}

Status read_generate_prompts(const Json& body, const ModelFacts& model, GenerateFields& out) {
  const Json* text = json_find(body, "text");
  const Json* ids = json_find(body, "input_ids");
  if (!text == !ids) {
    return invalid_argument("text and input_ids are {}; wanted exactly one of them",
                            text ? "both given" : "both missing");
  }
  const Json& given = text ? *text : *ids;
  const char* name = text ? "text" : "input_ids";
  out.batch = given.is_array() && (text || (!given.empty() && given.front().is_array()));
  const std::size_t count = out.batch ? given.size() : 1;
  if (count == 0 || count > kMaxPrompts)
    return invalid_argument("{} has {} prompts; wanted 1 to {}", name, count, kMaxPrompts);
  for (std::size_t i = 0; i < count; ++i) {
    const Json& one = out.batch ? given[i] : given;
    const std::string where = out.batch ? fmt::format("{}[{}]", name, i) : name;
    if (ids) {
      ASSIGN_OR_RETURN(std::vector<int32_t> tokens, read_ids(one, where, model.vocab_size));
      out.prompts.emplace_back(TokenPrompt{std::move(tokens)});
      continue;
    }
    if (!one.is_string()) return invalid_argument("{} is of type {}; wanted a string", where, json_type_name(one));
    if (one.get_ref<const std::string&>().empty()) {
      return invalid_argument("{} is empty; wanted at least one character", where);
    }
    out.prompts.emplace_back(TextPrompt{one.get<std::string>()});
  }
  return ok_status();
}

Status check_sampling_keys(const Json& params) {
  for (const auto& [key, value] : params.items()) {
    if (std::find(std::begin(kSamplingKeys), std::end(kSamplingKeys), key) != std::end(kSamplingKeys)) continue;
    return invalid_argument("{} is no known key{}", key.substr(0, 64), suggestion(key, kSamplingKeys));
  }
  return ok_status();
}

// `path`: the JSON pointer of `params` in `text`, the body.
Result<SamplingFields> read_params(const Json& params, const std::string& text, const std::string& path,
                                   const ModelFacts& model) {
  RETURN_IF_ERROR(check_sampling_keys(params));
  RETURN_IF_ERROR(refuse_unserved_sampling(params));
  ASSIGN_OR_RETURN(SamplingFields out, read_sampling(params, model, kNativeDialect));
  RETURN_IF_ERROR(read_native_grammar(params, text, path, out.params));
  return out;
}

Status read_logprob_fields(const Json& body, const ModelFacts& model, std::size_t i, GenerateFields& out) {
  wire::SamplingParams& params = out.sampling[i].params;
  bool wanted = false;
  ASSIGN_OR_RETURN(const Json flag, of_prompt(body, "return_logprob", out, i));
  RETURN_IF_ERROR(json_read(flag, "return_logprob", wanted));
  std::optional<int64_t> top, from;
  ASSIGN_OR_RETURN(const Json tops, of_prompt(body, "top_logprobs_num", out, i));
  RETURN_IF_ERROR(read_integer(tops, "top_logprobs_num", 0, kMaxClientTopLogprobs, top));
  ASSIGN_OR_RETURN(const Json start, of_prompt(body, "logprob_start_len", out, i));
  RETURN_IF_ERROR(read_integer(start, "logprob_start_len", -1, model.context_length - 1, from));
  std::vector<int32_t> ids;
  RETURN_IF_ERROR(read_token_ids(body, "token_ids_logprob", model, wire::kMaxLogprobTokenIds, ids));
  if (!wanted) return ok_status();  // the others without the switch mean nothing, as in the servers this follows
  params.top_logprobs = static_cast<int32_t>(top.value_or(0));
  params.prompt_logprobs_from = static_cast<int32_t>(from.value_or(-1));
  params.logprob_token_ids = std::move(ids);
  return ok_status();
}

Status read_sampling_params(const Json& body, const std::string& text, const ModelFacts& model, GenerateFields& out) {
  for (std::size_t i = 0; i < out.prompts.size(); ++i) {
    ASSIGN_OR_RETURN(const Json item, of_prompt(body, "sampling_params", out, i));
    const Json* params = json_find(item, "sampling_params");
    static const Json kNone = Json::object();
    const bool listed = body.contains("sampling_params") && body["sampling_params"].is_array();
    const std::string path = listed ? fmt::format("/sampling_params/{}", i) : "/sampling_params";
    if (params && !params->is_object()) {
      return invalid_argument("sampling_params is of type {}; wanted an object", json_type_name(*params));
    }
    Result<SamplingFields> fields = read_params(params ? *params : kNone, text, path, model);
    if (!fields.ok()) return Status(fields.status().code(), "sampling_params." + fields.status().message());
    out.sampling.push_back(std::move(fields).value());
    if (out.sampling.back().n != out.sampling.front().n) {
      return invalid_argument("sampling_params.n is {} here and {} there; wanted one number for the whole batch",
                              out.sampling.front().n, out.sampling.back().n);
    }
    RETURN_IF_ERROR(read_logprob_fields(body, model, i, out));
  }
  return ok_status();
}

// A string names a single request, or a whole batch, whose prompts are then rid_0, rid_1 and so on.
Status read_rids(const Json& body, GenerateFields& out) {
  const std::size_t count = out.prompts.size();
  const Json* given = json_find(body, "rid");
  if (!given || given->is_string()) {
    out.rid = make_id("");
    RETURN_IF_ERROR(read_name(body, "rid", out.rid));
    for (std::size_t i = 0; i < count; ++i) out.rids.push_back(out.batch ? fmt::format("{}_{}", out.rid, i) : out.rid);
    return ok_status();
  }
  std::set<std::string> seen;
  for (std::size_t i = 0; i < count; ++i) {
    ASSIGN_OR_RETURN(const Json item, of_prompt(body, "rid", out, i));
    std::string rid;
    RETURN_IF_ERROR(read_name(item, "rid", rid));
    if (rid.empty()) return invalid_argument("rid has a null; wanted strings");
    if (!seen.insert(rid).second) return invalid_argument("rid has '{}' twice; wanted different names", rid);
    out.rids.push_back(std::move(rid));
  }
  return ok_status();
}

}  // namespace

Result<GenerateFields> read_generate_fields(const Json& body, const std::string& text, const ModelFacts& model) {
  GenerateFields out;
  RETURN_IF_ERROR(refuse_unserved_native(body));
  RETURN_IF_ERROR(read_generate_prompts(body, model, out));
  RETURN_IF_ERROR(read_sampling_params(body, text, model, out));
  RETURN_IF_ERROR(check_choice_count(out.prompts.size(), out.n(), "sampling_params.n"));
  for (const SamplingFields& one : out.sampling) {
    RETURN_IF_ERROR(check_logprob_volume(one.params, one.max_tokens, out.prompts.size() * out.n(), model));
  }
  ASSIGN_OR_RETURN(out.request, read_request_fields(body));
  RETURN_IF_ERROR(check_kv_transfer(out.request.remote_kv, out.prompts.size() * out.n()));
  RETURN_IF_ERROR(read_rids(body, out));
  RETURN_IF_ERROR(json_read(body, "return_text_in_logprobs", out.text_in_logprobs));
  RETURN_IF_ERROR(json_read(body, "stream", out.stream));
  RETURN_IF_ERROR(json_read(body, "stream_output", out.stream_output));
  return out;
}

}  // namespace millrace::api
