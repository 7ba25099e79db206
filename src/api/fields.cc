#include "api/fields.h"

#include <nlohmann/json.hpp>
#include <random>

#include "wire/limits.h"

namespace millrace::api {
namespace {

uint64_t random_seed() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return generator();
}

// What a body costs as a tree goes by its values, not by its bytes: 32 MiB of "{}," would take gigabytes, and hold up
// the HTTP thread for half a minute. Counted here in one cheap pass, before there is a tree.
Status check_values(std::string_view text) {
  std::size_t values = 1, containers = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',') {
      ++values;
    } else if (c == '{' || c == '[') {
      ++containers;
    }
  }
  if (containers > kMaxBodyContainers) {
    return invalid_argument("the body has {} arrays and objects; wanted at most {}", containers, kMaxBodyContainers);
  }
  if (values > kMaxBodyValues) {
    return invalid_argument("the body has {} values; wanted at most {}", values, kMaxBodyValues);
  }
  return ok_status();
}

// A number within the range `wanted` describes; `inside` is written so that NaN fails it.
template <typename Inside>
Status read_number(const Json& body, std::string_view key, double& out, std::string_view wanted, Inside inside) {
  double value = out;
  RETURN_IF_ERROR(json_read(body, key, value));
  if (!inside(value)) return invalid_argument("{} is {}; wanted {}", key, value, wanted);
  out = value;
  return ok_status();
}

Status read_distribution(const Json& body, const ModelFacts& model, wire::SamplingParams& out) {
  out.temperature = model.temperature.value_or(1.0);
  out.top_p = model.top_p.value_or(1.0);
  out.min_p = model.min_p.value_or(0.0);
  out.top_k = model.top_k.value_or(-1);
  RETURN_IF_ERROR(read_number(body, "temperature", out.temperature, "a number in [0, 2]",
                              [](double v) { return v >= 0 && v <= 2; }));
  RETURN_IF_ERROR(
      read_number(body, "top_p", out.top_p, "a number in (0, 1]", [](double v) { return v > 0 && v <= 1; }));
  RETURN_IF_ERROR(
      read_number(body, "min_p", out.min_p, "a number in [0, 1]", [](double v) { return v >= 0 && v <= 1; }));
  std::optional<int64_t> top_k;
  RETURN_IF_ERROR(read_integer(body, "top_k", -1, kMaxTopK, top_k));
  if (top_k) out.top_k = static_cast<int32_t>(*top_k);
  if (out.top_k == 0) out.top_k = -1;  // both spellings of "off" are in use
  int64_t seed = 0;
  RETURN_IF_ERROR(json_read(body, "seed", seed));
  out.seed = json_find(body, "seed") ? static_cast<uint64_t>(seed) : random_seed();
  return ok_status();
}

Status check_stop(const std::string& stop) {
  if (stop.empty()) return invalid_argument("stop has an empty string; wanted strings of at least one byte");
  if (stop.size() > wire::kMaxStopStringBytes) {
    return invalid_argument("stop has a string of {} bytes; wanted at most {}", stop.size(), wire::kMaxStopStringBytes);
  }
  return ok_status();
}

Status read_stop(const Json& body, wire::SamplingParams& out) {
  const Json* stop = json_find(body, "stop");
  if (!stop) return ok_status();
  if (stop->is_string()) {
    out.stop = {stop->get<std::string>()};
  } else if (stop->is_array()) {
    if (stop->size() > wire::kMaxStopStrings) {
      return invalid_argument("stop has {} strings; wanted at most {}", stop->size(), wire::kMaxStopStrings);
    }
    for (const Json& item : *stop) {
      if (!item.is_string()) return invalid_argument("stop has a {}; wanted strings only", json_type_name(item));
      out.stop.push_back(item.get<std::string>());
    }
  } else {
    return invalid_argument("stop is of type {}; wanted a string or an array of strings", json_type_name(*stop));
  }
  for (const std::string& text : out.stop) RETURN_IF_ERROR(check_stop(text));
  return ok_status();
}

Status read_stop_token_ids(const Json& body, const ModelFacts& model, wire::SamplingParams& out) {
  const Json* ids = json_find(body, "stop_token_ids");
  if (!ids) return ok_status();
  if (!ids->is_array()) {
    return invalid_argument("stop_token_ids is of type {}; wanted an array of integers", json_type_name(*ids));
  }
  if (ids->size() > wire::kMaxStopTokenIds) {
    return invalid_argument("stop_token_ids has {} ids; wanted at most {}", ids->size(), wire::kMaxStopTokenIds);
  }
  for (const Json& id : *ids) {
    const bool inside = id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(model.vocab_size);
    if (!inside)
      return invalid_argument("stop_token_ids has {}; wanted ids in [0, {})", id.dump().substr(0, 64),
                              model.vocab_size);
    out.stop_token_ids.push_back(id.get<int32_t>());
  }
  return ok_status();
}

Status read_stream_options(const Json& body, CommonFields& out) {
  const Json* options = json_find(body, "stream_options");
  if (!options) return ok_status();
  if (!options->is_object()) {
    return invalid_argument("stream_options is of type {}; wanted an object", json_type_name(*options));
  }
  if (!out.stream) return invalid_argument("stream_options is set without stream: true");
  RETURN_IF_ERROR(json_read(*options, "include_usage", out.include_usage).with_prefix("stream_options"));
  return json_read(*options, "continuous_usage_stats", out.continuous_usage).with_prefix("stream_options");
}

// Fields that change the answer and are not served yet: their neutral value passes, anything else is refused.
Status refuse_unsupported(const Json& body) {
  struct Neutral {
    const char* key;
    Json value;
  };
  static const Neutral kNeutral[] = {
      {"n", 1},
      {"best_of", 1},
      {"echo", false},
      {"logprobs", false},
      {"top_logprobs", 0},
      {"logit_bias", Json::object()},
      {"frequency_penalty", 0},
      {"presence_penalty", 0},
      {"repetition_penalty", 1},
      {"min_tokens", 0},
      {"suffix", ""},
      {"tools", Json::array()},
      {"response_format", {{"type", "text"}}},
  };
  for (const auto& [key, value] : kNeutral) {
    const Json* seen = json_find(body, key);
    if (!seen || *seen == value) continue;
    return error(StatusCode::kUnsupported, "{} is not supported yet; wanted {} or nothing", key, value.dump());
  }
  for (const char* key : {"regex", "ebnf", "json_schema", "stop_regex"}) {
    if (json_find(body, key)) return error(StatusCode::kUnsupported, "{} is not supported yet; leave it out", key);
  }
  return ok_status();
}

}  // namespace

Result<Json> parse_body(const std::string& body) {
  RETURN_IF_ERROR(check_values(body));
  ASSIGN_OR_RETURN(Json json, parse_json(body));
  if (!json.is_object()) return invalid_argument("the body is of type {}; wanted an object", json_type_name(json));
  return json;
}

Status check_model(const Json& body, const ModelFacts& model) {
  std::string name = model.name;
  RETURN_IF_ERROR(json_read(body, "model", name));
  if (name == model.name) return ok_status();
  return error(StatusCode::kNotFound, "The model '{}' does not exist; this server has '{}'", name.substr(0, 200),
               model.name);
}

Status read_integer(const Json& body, std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out) {
  if (!json_find(body, key)) return ok_status();
  int64_t value = 0;
  RETURN_IF_ERROR(json_read(body, key, value));
  if (value < low || value > high) {
    return invalid_argument("{} is {}; wanted an integer in [{}, {}]", key, value, low, high);
  }
  out = value;
  return ok_status();
}

Result<CommonFields> read_common(const Json& body, const ModelFacts& model) {
  CommonFields out;
  RETURN_IF_ERROR(refuse_unsupported(body));
  RETURN_IF_ERROR(read_distribution(body, model, out.sampling));
  RETURN_IF_ERROR(read_stop(body, out.sampling));
  RETURN_IF_ERROR(read_stop_token_ids(body, model, out.sampling));
  RETURN_IF_ERROR(json_read(body, "ignore_eos", out.sampling.ignore_eos));
  RETURN_IF_ERROR(json_read(body, "skip_special_tokens", out.sampling.skip_special_tokens));
  RETURN_IF_ERROR(json_read(body, "include_stop_str_in_output", out.sampling.include_stop_str_in_output));
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    std::optional<int64_t> value;
    RETURN_IF_ERROR(read_integer(body, key, 1, INT32_MAX, value));
    if (value) out.max_tokens = static_cast<int32_t>(*value);
  }
  RETURN_IF_ERROR(json_read(body, "stream", out.stream));
  RETURN_IF_ERROR(read_stream_options(body, out));
  RETURN_IF_ERROR(json_read(body, "cache_salt", out.cache_salt));
  if (out.cache_salt.size() > wire::kMaxNameBytes) {
    return invalid_argument("cache_salt has {} bytes; wanted at most {}", out.cache_salt.size(), wire::kMaxNameBytes);
  }
  return out;
}

ApiError field_error(const Status& status) {
  ApiError error = from_status(status);
  if (status.code() == StatusCode::kNotFound) {
    error.param = "model";
    error.code = "model_not_found";
    return error;
  }
  // Messages begin with the field's name, which clients also expect by itself.
  const std::string_view message = status.message();
  const std::size_t space = message.find(' ');
  for (std::string_view verb : {" is ", " has "}) {
    if (space != std::string_view::npos && message.substr(space).starts_with(verb)) {
      error.param = std::string(message.substr(0, space));
    }
  }
  if (error.param == "the") error.param.clear();
  return error;
}

}  // namespace millrace::api
