#include "api/llama_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "api/logprobs.h"
#include "base/json.h"

namespace millrace::api {
namespace {

// "id":5,"token":" a","bytes":[32,97],"logprob":-0.5
void append_probability(std::string& out, const Engine& engine, int32_t id, double logprob) {
  const std::string bytes = engine.token_bytes(id);
  fmt::format_to(std::back_inserter(out), "\"id\":{},\"token\":", id);
  json_append_string(out, bytes);
  out += ",\"bytes\":[";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    append_integer(out, static_cast<unsigned char>(bytes[i]));
  }
  fmt::format_to(std::back_inserter(out), "],\"logprob\":{}", std::max(logprob, kLeastLogprob));
}

void append_probabilities(std::string& out, const Engine& engine, LogprobSpan tokens) {
  out += ",\"completion_probabilities\":[";
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    out += i > 0 ? ",{" : "{";
    append_probability(out, engine, tokens[i].token, tokens[i].logprob.value_or(kLeastLogprob));
    out += ",\"top_logprobs\":[";
    for (std::size_t k = 0; k < tokens[i].top_ids.size(); ++k) {
      out += k > 0 ? ",{" : "{";
      append_probability(out, engine, tokens[i].top_ids[k], tokens[i].top[k]);
      out += '}';
    }
    out += "]}";
  }
  out += ']';
}

// How the text ended, and with which string.
void append_stop(std::string& out, const wire::Finish& finish) {
  const std::string_view type = finish.reason == wire::FinishReason::kLength    ? "limit"
                                : finish.reason == wire::FinishReason::kAborted ? "none"
                                : finish.matched_text                           ? "word"
                                                                                : "eos";
  fmt::format_to(std::back_inserter(out), ",\"stop_type\":\"{}\",\"stopping_word\":", type);
  json_append_string(out, finish.matched_text.value_or(""));
}

// "prompt_n":5,"prompt_ms":1.5,...; nothing took no time: its speed is 0.
void append_speed(std::string& out, std::string_view name, int32_t tokens, double seconds) {
  const double ms = std::max(0.0, seconds) * 1000, count = tokens;
  fmt::format_to(std::back_inserter(out),
                 R"("{0}_n":{1},"{0}_ms":{2:.3f},"{0}_per_token_ms":{3:.3f},"{0}_per_second":{4:.3f})", name, tokens,
                 ms, tokens > 0 ? ms / count : 0.0, ms > 0 ? count * 1000 / ms : 0.0);
}

}  // namespace

// What is there of a text, or of its next part.
void LlamaFormat::append_part(std::string& out, const ChoiceState& choice) const {
  out += "{\"index\":";
  append_integer(out, choice.index);
  out += ",\"content\":";
  json_append_string(out, choice.text);
  std::span<const int32_t> tokens = choice.tokens;
  if (choice.finish && choice.finish->matched_token && !tokens.empty()) tokens = tokens.first(tokens.size() - 1);
  out += ",\"tokens\":";
  append_ids(out, shape_.tokens ? std::vector<int32_t>(tokens.begin(), tokens.end()) : std::vector<int32_t>());
  fmt::format_to(std::back_inserter(out), ",\"id_slot\":-1,\"stop\":{},\"tokens_predicted\":{},\"tokens_evaluated\":{}",
                 choice.finish.has_value(), choice.usage.completion_tokens, choice.usage.prompt_tokens);
  if (shape_.probabilities) append_probabilities(out, engine_, choice.logprobs);
}

void LlamaFormat::append_end(std::string& out, const ChoiceState& choice) const {
  const wire::Usage& usage = choice.usage;
  const double total = choice.elapsed_seconds,
               first = choice.first_token_seconds > 0 ? choice.first_token_seconds : total;
  out += ",\"model\":";
  json_append_string(out, shape_.model);
  out += ",\"generation_settings\":" + shape_.settings + ",\"truncated\":false";
  append_stop(out, *choice.finish);
  fmt::format_to(std::back_inserter(out), ",\"tokens_cached\":{},\"timings\":{{\"cache_n\":{},", usage.cached_tokens,
                 usage.cached_tokens);
  append_speed(out, "prompt", usage.prompt_tokens - usage.cached_tokens, first - usage.queue_seconds);
  out += ',';
  append_speed(out, "predicted", usage.completion_tokens, total - first);
  out += '}';
}

void LlamaFormat::events(const ChoiceState& choice, EventWriter& writer) {
  std::string& out = writer.begin();
  append_part(out, choice);
  if (choice.finish) append_end(out, choice);
  out += '}';
  writer.end();
}

std::string LlamaFormat::choice(const ChoiceState& choice) {
  std::string out;
  append_part(out, choice);
  append_end(out, choice);
  return out + "}";
}

std::string LlamaFormat::body(std::string choices, const wire::Usage& /*usage*/) {
  return shape_.list ? std::move(choices.insert(0, 1, '[').append(1, ']')) : std::move(choices);
}

}  // namespace millrace::api
