#include "api/sampling_fields.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "text/stop_regex.h"
#include "wire/limits.h"

namespace millrace::api {

const SamplingDialect kOpenAiDialect{.max_tokens = "max_tokens",
                                     .max_tokens_also = "max_completion_tokens",
                                     .n_predict = "n_predict",
                                     .min_tokens = "min_tokens",
                                     .seed = "seed"};
const SamplingDialect kMessagesDialect{
    .max_tokens = "max_tokens", .min_tokens = "min_tokens", .seed = "seed", .stop = "stop_sequences"};
const SamplingDialect kResponsesDialect{.max_tokens = "max_output_tokens", .min_tokens = "min_tokens", .seed = "seed"};
// Temperatures of the native endpoint are bounded only so that nothing overflows.
const SamplingDialect kNativeDialect{.max_tokens = "max_new_tokens",
                                     .min_tokens = "min_new_tokens",
                                     .seed = "sampling_seed",
                                     .least_max_tokens = 0,
                                     .default_max_tokens = 128,
                                     .null_is_unbounded = true,
                                     .max_temperature = 100,
                                     .model_defaults = false};

namespace {

// A number within the range `wanted` describes; `inside` is written so that NaN fails it.
template <typename Inside>
Status read_number(const Json& object, std::string_view key, double& out, std::string_view wanted, Inside inside) {
  double value = out;
  RETURN_IF_ERROR(json_read(object, key, value));
  if (!inside(value)) return invalid_argument("{} is {}; wanted {}", key, value, wanted);
  out = value;
  return ok_status();
}

Status read_distribution(const Json& object, const ModelFacts& model, const SamplingDialect& dialect,
                         wire::SamplingParams& out) {
  if (dialect.model_defaults) {
    out.temperature = model.temperature.value_or(1.0);
    out.top_p = model.top_p.value_or(1.0);
    out.min_p = model.min_p.value_or(0.0);
    out.top_k = model.top_k.value_or(-1);
  }
  const double hottest = dialect.max_temperature;
  RETURN_IF_ERROR(read_number(object, "temperature", out.temperature, fmt::format("a number in [0, {}]", hottest),
                              [hottest](double v) { return v >= 0 && v <= hottest; }));
  if (out.temperature < kGreedyBelow) out.temperature = 0;
  RETURN_IF_ERROR(
      read_number(object, "top_p", out.top_p, "a number in (0, 1]", [](double v) { return v > 0 && v <= 1; }));
  RETURN_IF_ERROR(
      read_number(object, "min_p", out.min_p, "a number in [0, 1]", [](double v) { return v >= 0 && v <= 1; }));
  std::optional<int64_t> top_k;
  RETURN_IF_ERROR(read_integer(object, "top_k", -1, kMaxTopK, top_k));
  if (top_k) out.top_k = static_cast<int32_t>(*top_k);
  if (out.top_k == 0) out.top_k = -1;  // both spellings of "off" are in use
  return ok_status();
}

Status read_penalties(const Json& object, const ModelFacts& model, const SamplingDialect& dialect,
                      wire::SamplingParams& out) {
  if (dialect.model_defaults) out.repetition_penalty = model.repetition_penalty.value_or(1.0);
  const auto two = [](double v) { return v >= -2 && v <= 2; };
  RETURN_IF_ERROR(read_number(object, "frequency_penalty", out.frequency_penalty, "a number in [-2, 2]", two));
  RETURN_IF_ERROR(read_number(object, "presence_penalty", out.presence_penalty, "a number in [-2, 2]", two));
  return read_number(object, "repetition_penalty", out.repetition_penalty, "a number in (0, 2]",
                     [](double v) { return v > 0 && v <= 2; });
}

// "17" and nothing like "017", "+17" or "17 ": one id has one spelling, so no two keys can mean the same token.
bool parse_id(std::string_view key, int64_t& id) {
  const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
  return fault == std::errc() && end == key.data() + key.size() && std::to_string(id) == key;
}

Status read_logit_bias(const Json& object, const ModelFacts& model, wire::SamplingParams& out) {
  const Json* biases = json_find(object, "logit_bias");
  if (!biases) return ok_status();
  if (!biases->is_object()) {
    return invalid_argument("logit_bias is of type {}; wanted an object of token ids to numbers",
                            json_type_name(*biases));
  }
  if (biases->size() > wire::kMaxLogitBiases) {
    return invalid_argument("logit_bias has {} entries; wanted at most {}", biases->size(), wire::kMaxLogitBiases);
  }
  for (const auto& [key, value] : biases->items()) {
    int64_t id = -1;
    if (!parse_id(key, id) || id < 0 || id >= model.vocab_size) {
      return invalid_argument("logit_bias has the key '{}'; wanted token ids in [0, {})", key.substr(0, 64),
                              model.vocab_size);
    }
    if (!value.is_number()) {
      return invalid_argument("logit_bias has a {} for '{}'; wanted a number", json_type_name(value), key);
    }
    const double bias = value.get<double>();
    if (!(bias >= -kMaxLogitBias && bias <= kMaxLogitBias)) {
      return invalid_argument("logit_bias has {} for '{}'; wanted a number in [-{}, {}]", bias, key, kMaxLogitBias,
                              kMaxLogitBias);
    }
    out.logit_bias.push_back({static_cast<int32_t>(id), bias});
  }
  std::sort(out.logit_bias.begin(), out.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  return ok_status();
}

Status check_stop(std::string_view key, const std::string& stop) {
  if (stop.empty()) return invalid_argument("{} has an empty string; wanted strings of at least one byte", key);
  if (stop.size() > wire::kMaxStopStringBytes) {
    return invalid_argument("{} has a string of {} bytes; wanted at most {}", key, stop.size(),
                            wire::kMaxStopStringBytes);
  }
  return ok_status();
}

// A string or an array of them.
Status read_strings(const Json& object, std::string_view key, std::vector<std::string>& out) {
  const Json* given = json_find(object, key);
  if (!given) return ok_status();
  if (given->is_string()) {
    out = {given->get<std::string>()};
  } else if (given->is_array()) {
    if (given->size() > wire::kMaxStopStrings) {
      return invalid_argument("{} has {} strings; wanted at most {}", key, given->size(), wire::kMaxStopStrings);
    }
    for (const Json& item : *given) {
      if (!item.is_string()) return invalid_argument("{} has a {}; wanted strings only", key, json_type_name(item));
      out.push_back(item.get<std::string>());
    }
  } else {
    return invalid_argument("{} is of type {}; wanted a string or an array of strings", key, json_type_name(*given));
  }
  for (const std::string& text : out) RETURN_IF_ERROR(check_stop(key, text));
  return ok_status();
}

Status read_stops(const Json& object, const ModelFacts& model, const SamplingDialect& dialect,
                  wire::SamplingParams& out) {
  RETURN_IF_ERROR(read_strings(object, dialect.stop, out.stop));
  RETURN_IF_ERROR(read_strings(object, "stop_regex", out.stop_regex));
  for (const std::string& pattern : out.stop_regex) {
    if (Status status = check_stop_regex(pattern); !status.ok()) {
      return invalid_argument("stop_regex has '{}': {}", pattern.substr(0, 64), status.message());
    }
  }
  RETURN_IF_ERROR(read_token_ids(object, "stop_token_ids", model, wire::kMaxStopTokenIds, out.stop_token_ids));
  RETURN_IF_ERROR(json_read(object, "ignore_eos", out.ignore_eos));
  RETURN_IF_ERROR(json_read(object, "skip_special_tokens", out.skip_special_tokens));
  RETURN_IF_ERROR(json_read(object, "include_stop_str_in_output", out.include_stop_str_in_output));
  bool no_trim = false;  // another name of the same wish
  RETURN_IF_ERROR(json_read(object, "no_stop_trim", no_trim));
  out.include_stop_str_in_output |= no_trim;
  return ok_status();
}

// Any 64 bits, with a sign or without.
Status read_seed(const Json& object, std::string_view key, SamplingFields& out) {
  const Json* seed = json_find(object, key);
  out.seeded = seed != nullptr;
  if (!seed) return ok_status();
  if (!seed->is_number_integer()) {
    const std::string seen = seed->is_number() ? seed->dump() : fmt::format("of type {}", json_type_name(*seed));
    return invalid_argument("{} is {}; wanted an integer in [-2^63, 2^64)", key, seen);
  }
  out.params.seed = seed->is_number_unsigned() ? seed->get<uint64_t>() : static_cast<uint64_t>(seed->get<int64_t>());
  return ok_status();
}

Status read_lengths(const Json& object, const ModelFacts& model, const SamplingDialect& dialect, SamplingFields& out) {
  if (!dialect.null_is_unbounded || !object.contains(dialect.max_tokens)) out.max_tokens = dialect.default_max_tokens;
  for (std::string_view key : {dialect.max_tokens, dialect.max_tokens_also}) {
    if (key.empty()) continue;
    std::optional<int64_t> value;
    RETURN_IF_ERROR(read_integer(object, key, dialect.least_max_tokens, INT32_MAX, value));
    if (value) out.max_tokens = static_cast<int32_t>(*value);
  }
  if (const Json* predict = dialect.n_predict.empty() ? nullptr : json_find(object, dialect.n_predict)) {
    std::optional<int64_t> value;
    if (*predict != -1) {
      RETURN_IF_ERROR(read_integer(object, dialect.n_predict, dialect.least_max_tokens, INT32_MAX, value));
    }
    out.max_tokens = value ? std::optional(static_cast<int32_t>(*value)) : std::nullopt;
  }
  std::optional<int64_t> least;
  const int32_t most = out.max_tokens.value_or(model.context_length);
  RETURN_IF_ERROR(read_integer(object, dialect.min_tokens, 0, most, least));
  out.params.min_tokens = static_cast<int32_t>(least.value_or(0));
  return ok_status();
}

}  // namespace

Status read_integer(const Json& object, std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out) {
  if (!json_find(object, key)) return ok_status();
  int64_t value = 0;
  RETURN_IF_ERROR(json_read(object, key, value));
  if (value < low || value > high) {
    return invalid_argument("{} is {}; wanted an integer in [{}, {}]", key, value, low, high);
  }
  out = value;
  return ok_status();
}

Result<std::optional<int32_t>> read_chat_logprobs(const Json& body) {
  bool wanted = false;
  RETURN_IF_ERROR(json_read(body, "logprobs", wanted));
  std::optional<int64_t> top;
  RETURN_IF_ERROR(read_integer(body, "top_logprobs", 0, kMaxClientTopLogprobs, top));
  if (top.value_or(0) > 0 && !wanted) {
    return invalid_argument("top_logprobs is {} without logprobs: true; wanted both or neither", *top);
  }
  return wanted ? std::optional(static_cast<int32_t>(top.value_or(0))) : std::nullopt;
}

Status read_token_ids(const Json& object, std::string_view key, const ModelFacts& model, std::size_t at_most,
                      std::vector<int32_t>& out) {
  const Json* ids = json_find(object, key);
  if (!ids) return ok_status();
  if (!ids->is_array()) {
    return invalid_argument("{} is of type {}; wanted an array of integers", key, json_type_name(*ids));
  }
  if (ids->size() > at_most) return invalid_argument("{} has {} ids; wanted at most {}", key, ids->size(), at_most);
  for (const Json& id : *ids) {
    const bool inside = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(model.vocab_size);
    if (!inside) {
      return invalid_argument("{} has {}; wanted ids in [0, {})", key, id.dump().substr(0, 64), model.vocab_size);
    }
    out.push_back(id.get<int32_t>());
  }
  return ok_status();
}

Result<SamplingFields> read_sampling(const Json& object, const ModelFacts& model, const SamplingDialect& dialect) {
  SamplingFields out;
  RETURN_IF_ERROR(read_distribution(object, model, dialect, out.params));
  RETURN_IF_ERROR(read_penalties(object, model, dialect, out.params));
  RETURN_IF_ERROR(read_logit_bias(object, model, out.params));
  RETURN_IF_ERROR(read_stops(object, model, dialect, out.params));
  RETURN_IF_ERROR(read_lengths(object, model, dialect, out));
  RETURN_IF_ERROR(read_seed(object, dialect.seed, out));
  std::optional<int64_t> n;
  RETURN_IF_ERROR(read_integer(object, "n", 1, kMaxChoicesPerPrompt, n));
  out.n = static_cast<int32_t>(n.value_or(1));
  return out;
}

Status check_logprob_volume(const wire::SamplingParams& sampling, const std::optional<int32_t>& max_tokens,
                            std::size_t choices, const ModelFacts& model) {
  if (sampling.top_logprobs < 0) return ok_status();
  const int64_t context = model.context_length;
  const int64_t positions =
      sampling.prompt_logprobs_from >= 0 ? context : std::min<int64_t>(max_tokens.value_or(context), context);
  const int64_t each = 1 + sampling.top_logprobs + static_cast<int64_t>(sampling.logprob_token_ids.size());
  const int64_t values = static_cast<int64_t>(choices) * positions * each;  // at most 2^8 * 2^31 * 2^11
  if (values <= kMaxLogprobValues) return ok_status();
  return invalid_argument(
      "the request has {} texts of up to {} tokens with {} logprobs each; wanted at most {} logprobs in all: ask for "
      "fewer tokens, choices or logprobs",
      choices, positions, each, kMaxLogprobValues);
}

}  // namespace millrace::api
