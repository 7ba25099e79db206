// What programs ask of a server: /server_info, /model_info (and their older names /get_server_info, /get_model_info)
// and /metrics.
#include <fmt/format.h>

#include <algorithm>

#include "api/fields.h"
#include "api/routes.h"
#include "api/samples.h"
#include "api/weights.h"
#include "base/json.h"

namespace millrace::api {
namespace {

bool is_scheduler(const wire::StageStatus& stage) {
  return stage.pages_total > 0 || stage.stage.starts_with("scheduler");  // that of text, before its model is here
}

void append_member(std::string& out, std::string_view name, std::string_view text) {
  fmt::format_to(std::back_inserter(out), ",\"{}\":", name);
  json_append_string(out, text);
}

void append_state(std::string& out, const wire::StageStatus& stage) {
  const int64_t page = stage.page_size;
  out += "{\"stage\":";
  json_append_string(out, stage.stage);
  fmt::format_to(
      std::back_inserter(out),
      ",\"state\":\"{}\",\"running\":{},\"waiting\":{},\"steps\":{},\"token_capacity\":{},\"free_tokens\":{},"
      "\"cached_tokens\":{},\"weight_version\":\"{}\"}}",
      wire::stage_state_name(stage.state), stage.running, stage.waiting, stage.steps, page * stage.pages_total,
      page * stage.pages_free, page * stage.pages_cached, stage.weight_version);
}

void server_info(ApiContext& context, const http::ResponderPtr& responder) {
  const ModelFacts& model = context.engine.model();
  const Health health = context.engine.health();
  std::string states;
  int64_t tokens = 0, page_size = 0, longest_prompt = model.context_length - 1;
  for (const wire::StageStatus& stage : health.stages) {
    if (!is_scheduler(stage)) continue;
    const int64_t capacity = int64_t{stage.pages_total} * stage.page_size;
    tokens += capacity;
    if (capacity > 0) longest_prompt = std::min(longest_prompt, capacity);
    page_size = stage.page_size;
    if (!states.empty()) states += ',';
    append_state(states, stage);
  }
  std::string out = fmt::format("{{\"status\":\"{}\"", health.ready      ? "ready"
                                                       : health.draining ? "draining"
                                                                         : "starting");
  append_member(out, "version", context.version);
  append_member(out, "served_model_name", model.name);
  append_member(out, "model_path", model.path);
  append_member(out, "tokenizer_path", model.path);
  fmt::format_to(std::back_inserter(out),
                 ",\"context_length\":{},\"max_req_input_len\":{},\"max_total_num_tokens\":{},\"page_size\":{},"
                 "\"options\":{},\"internal_states\":[{}]}}",
                 model.context_length, longest_prompt, tokens, page_size, context.options_json, states);
  responder->send({.body = std::move(out)});
}

// What a client that sends no sampling fields gets, where the model defines it.
std::string preferred_sampling(const ModelFacts& model) {
  std::string out;
  const auto append = [&out](const char* name, const auto& value) {
    if (value) fmt::format_to(std::back_inserter(out), "{}\"{}\":{}", out.empty() ? "{" : ",", name, *value);
  };
  append("temperature", model.temperature);
  append("top_p", model.top_p);
  append("top_k", model.top_k);
  append("min_p", model.min_p);
  append("repetition_penalty", model.repetition_penalty);
  return out.empty() ? "null" : out + "}";
}

// That it answers with, the default first; nothing where it answers with text alone.
std::string voices_of(const ModelFacts& model) {
  std::string out;
  if (!model.speech) return out;
  for (const std::string& voice : model.speech->voices) {
    if (!out.empty()) out += ',';
    json_append_string(out, voice);
  }
  return out;
}

void model_info(ApiContext& context, const http::ResponderPtr& responder) {
  const ModelFacts& model = context.engine.model();
  uint64_t weight_version = 0;
  for (const wire::StageStatus& stage : context.engine.health().stages) {
    if (is_scheduler(stage)) weight_version = std::max(weight_version, stage.weight_version);
  }
  std::string out = "{\"is_generation\":true";
  append_member(out, "model_path", model.path);
  append_member(out, "tokenizer_path", model.path);
  append_member(out, "served_model_name", model.name);
  append_member(out, "model_type", model.architecture);
  out += ",\"architectures\":[";
  json_append_string(out, model.architecture);
  out += "],\"weight_version\":";
  append_version(out, context.engine.weights(), weight_version);
  fmt::format_to(std::back_inserter(out),
                 ",\"context_length\":{},\"vocab_size\":{},\"has_chat_template\":{},"
                 "\"has_image_understanding\":{},\"has_audio_understanding\":{},"
                 "\"voices\":[{}],\"preferred_sampling_params\":{}}}",
                 model.context_length, model.vocab_size, model.has_chat_template, model.media.pictures.has_value(),
                 model.media.audio.has_value(), voices_of(model), preferred_sampling(model));
  responder->send({.body = std::move(out)});
}

// Constant cost: it looks at the last heartbeats and at counters.
void metrics(ApiContext& context, const http::ResponderPtr& responder) {
  if (context.pipeline) {
    const std::string text = pipeline_metrics(context.server, *context.pipeline) + context.state->metrics.render({});
    responder->send({.content_type = std::string(Metrics::kContentType), .body = text});
    return;
  }
  const Health health = context.engine.health();
  std::vector<MetricSample> samples = server_samples(context.server, health);
  samples.push_back(
      {"live_requests", "Names of requests under way.", {}, static_cast<double>(context.state->live.size())});
  if (const RequestSpans* spans = context.state->record.spans.get()) {
    samples.push_back(
        {"spans_exported_total", "Spans that the collector has.", {}, static_cast<double>(spans->exported())});
    samples.push_back({"spans_dropped_total",
                       "Spans that it did not take, or that came while too many waited.",
                       {},
                       static_cast<double>(spans->dropped())});
  }
  responder->send({.content_type = std::string(Metrics::kContentType), .body = context.state->metrics.render(samples)});
}

}  // namespace

void add_info_routes(ApiContext& context) {
  using Answer = void (*)(ApiContext&, const http::ResponderPtr&);
  const auto get = [&context](const char* pattern, http::Access access, Answer answer) {
    context.server.add_route(
        {.method = "GET", .pattern = pattern, .access = access, .handler = [&context, answer](auto, auto responder) {
           answer(context, responder);
         }});
  };
  get("/server_info", http::Access::kUser, server_info);
  get("/get_server_info", http::Access::kUser, server_info);
  get("/model_info", http::Access::kUser, model_info);
  get("/get_model_info", http::Access::kUser, model_info);
  get("/metrics", http::Access::kPublic, metrics);  // scrapers carry no key
}

}  // namespace millrace::api
