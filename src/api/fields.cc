#include "api/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/grammar_fields.h"
#include "api/transfer_fields.h"
#include "api/unserved_fields.h"
#include "kv/extra_key.h"
#include "wire/limits.h"

namespace millrace::api {
namespace {

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

// Seconds to milliseconds, rounded up: a deadline of a microsecond is one, not none.
Status read_seconds(const Json& body, std::string_view key, int64_t& out_ms) {
  if (!json_find(body, key)) return ok_status();
  double seconds = 0;
  RETURN_IF_ERROR(json_read(body, key, seconds));
  if (!(seconds > 0 && seconds <= kMaxTimeoutS)) {
    return invalid_argument("{} is {}; wanted a number of seconds in (0, {}]", key, seconds, kMaxTimeoutS);
  }
  out_ms = static_cast<int64_t>(std::ceil(seconds * 1000));
  return ok_status();
}

}  // namespace

void ValueCount::add(std::string_view text) {
  ++values_;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',') {
      ++values_;
    } else if (c == '{' || c == '[') {
      ++containers_;
    }
  }
}

Status ValueCount::check(std::string_view what) const {
  if (containers_ > kMaxBodyContainers) {
    return invalid_argument("{} has {} arrays and objects; wanted at most {}", what, containers_, kMaxBodyContainers);
  }
  if (values_ > kMaxBodyValues) {
    return invalid_argument("{} has {} values; wanted at most {}", what, values_, kMaxBodyValues);
  }
  return ok_status();
}

Result<Json> parse_body(const std::string& body) {
  if (body.starts_with("\xEF\xBB\xBF")) {  // which the parser would take for nothing
    return invalid_argument("the body begins with a byte order mark; wanted JSON in UTF-8 without one");
  }
  ValueCount count;
  count.add(body);
  RETURN_IF_ERROR(count.check("the body"));
  ASSIGN_OR_RETURN(Json json, parse_json(body));
  if (!json.is_object()) return invalid_argument("the body is of type {}; wanted an object", json_type_name(json));
  return json;
}

Status read_name(const Json& body, std::string_view key, std::string& out) {
  if (!json_find(body, key)) return ok_status();
  RETURN_IF_ERROR(json_read(body, key, out));
  if (out.empty() || out.size() > wire::kMaxNameBytes) {
    return invalid_argument("{} has {} bytes; wanted 1 to {}", key, out.size(), wire::kMaxNameBytes);
  }
  return ok_status();
}

Result<RequestFields> read_request_fields(const Json& body) {
  RequestFields out;
  ExtraKey keys;
  for (const char* key : {"cache_salt", "extra_key"}) {
    std::string value;
    RETURN_IF_ERROR(json_read(body, key, value));
    if (value.size() > wire::kMaxNameBytes) {
      return invalid_argument("{} has {} bytes; wanted at most {}", key, value.size(), wire::kMaxNameBytes);
    }
    keys.add(key, value);
  }
  out.extra_key = keys.str();
  std::optional<int64_t> priority;
  RETURN_IF_ERROR(read_integer(body, "priority", INT32_MIN, INT32_MAX, priority));
  out.priority = static_cast<int32_t>(priority.value_or(0));
  std::optional<int64_t> replica;
  for (const char* key : {"data_parallel_rank", "routed_dp_rank"}) {  // an older name, and the one that counts
    RETURN_IF_ERROR(read_integer(body, key, 0, INT32_MAX, replica));
  }
  if (replica) out.replica = static_cast<int32_t>(*replica);
  RETURN_IF_ERROR(read_seconds(body, "timeout_s", out.timeout_ms));
  RETURN_IF_ERROR(read_seconds(body, "queue_timeout_s", out.queue_timeout_ms));
  ASSIGN_OR_RETURN(out.remote_kv, read_kv_transfer(body));
  return out;
}

Status read_prompt_logprobs(const Json& body, CommonFields& out) {
  wire::SamplingParams& params = out.sampling.params;
  out.top_logprobs = static_cast<std::size_t>(std::max(params.top_logprobs, 0));
  std::optional<int64_t> count;
  RETURN_IF_ERROR(read_integer(body, "prompt_logprobs", 0, kMaxClientTopLogprobs, count));
  if (!count) return ok_status();
  if (out.stream) return invalid_argument("prompt_logprobs is {} in a stream; wanted no stream", *count);
  out.prompt_logprobs = true;
  params.prompt_logprobs_from = 0;
  params.top_logprobs = std::max(params.top_logprobs, static_cast<int32_t>(*count));
  return ok_status();
}

Status read_rank(const http::Request& request, RequestFields& out) {
  const std::string* text = request.headers.find("X-Data-Parallel-Rank");
  if (text == nullptr) return ok_status();
  int32_t rank = -1;
  const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), rank);
  if (code != std::errc() || end != text->data() + text->size() || rank < 0) {
    return invalid_argument("X-Data-Parallel-Rank is '{}'; wanted an integer of at least 0", text->substr(0, 64));
  }
  out.replica = rank;
  return ok_status();
}

Result<std::optional<int64_t>> read_truncation(const Json& body, const ModelFacts& model) {
  std::optional<int64_t> out;
  RETURN_IF_ERROR(read_integer(body, "truncate_prompt_tokens", -1, model.context_length - 1, out));
  if (out == 0) return invalid_argument("truncate_prompt_tokens is 0; wanted -1 or at least 1");
  if (out == -1) out = model.context_length - 1;
  return out;
}

Result<CommonFields> read_common(const Json& body, const std::string& text, const ModelFacts& model,
                                 const SamplingDialect& dialect) {
  CommonFields out;
  RETURN_IF_ERROR(refuse_unserved(body));
  if (dialect.n_predict.empty()) RETURN_IF_ERROR(refuse_unless(body, "n_predict", nullptr));
  ASSIGN_OR_RETURN(out.sampling, read_sampling(body, model, dialect));
  RETURN_IF_ERROR(read_grammar(body, text, out.sampling.params));
  ASSIGN_OR_RETURN(out.request, read_request_fields(body));
  for (const char* key : {"request_id", "rid"}) RETURN_IF_ERROR(read_name(body, key, out.rid));
  RETURN_IF_ERROR(json_read(body, "stream", out.stream));
  RETURN_IF_ERROR(read_stream_options(body, out));
  RETURN_IF_ERROR(json_read(body, "return_token_ids", out.token_ids));
  RETURN_IF_ERROR(json_read(body, "return_tokens_as_token_ids", out.tokens_as_ids));
  ASSIGN_OR_RETURN(out.truncate, read_truncation(body, model));
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
  if (error.param == "the" || error.param.starts_with('/')) error.param.clear();  // a path is no field
  if (error.http_status == 400 && message.substr(0, space).ends_with(':'))
    error.param = std::string(message.substr(0, space - 1));
  return error;
}

}  // namespace millrace::api
