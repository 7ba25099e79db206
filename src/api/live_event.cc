#include "api/live_event.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "api/health.h"
#include "base/clock.h"
#include "base/json.h"
#include "stages/stage.h"

namespace millrace::api {
namespace {

template <typename... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

void append_member(std::string& out, std::string_view name, std::string_view text) {
  append(out, ",\"{}\":", name);
  json_append_string(out, text);
}

// Before each element but the first of a list or an object that has just begun.
void separate(std::string& out) {
  if (out.back() != '[' && out.back() != '{') out += ',';
}

// Transfers of KV pages, and ranges of layers: what a stage has where it has some.
bool is_shown(std::string_view metric) {
  return metric.starts_with("kv_") || metric.starts_with("range_") || metric.starts_with("media_");
}

void append_live_stage(std::string& out, const wire::StageStatus& stage) {
  append_stage(out, stage);
  out.pop_back();
  append(out, ",\"replica\":{},\"weight_version\":{},\"metrics\":{{", stage.replica, stage.weight_version);
  std::size_t shown = 0;
  for (const wire::Metric& metric : stage.metrics) {
    if (!is_shown(metric.name) || shown++ >= kMaxLiveMetrics) continue;
    separate(out);
    json_append_string(out, metric.name);
    append(out, ":{}", metric.value);
  }
  out += "}}";
}

void append_links(std::string& out, const std::vector<StageLink>& links) {
  static constexpr const char* kKinds[] = {"payload", "stream", "layers", "pages", "features"};
  out += ",\"links\":[";
  for (const StageLink& link : links) {
    separate(out);
    out += "{\"from\":";
    json_append_string(out, link.from);
    append_member(out, "to", link.to);
    append(out, ",\"kind\":\"{}\"}}", kKinds[static_cast<std::size_t>(link.kind)]);
  }
  out += ']';
}

// Stages without a scheduler reply that they have none, and are left out.
void append_schedulers(std::string& out, const std::vector<wire::AdminReply>& replies) {
  out += ",\"schedulers\":[";
  for (const wire::AdminReply& reply : replies) {
    if (reply.code == StatusCode::kUnsupported || reply.code == StatusCode::kUnavailable) continue;
    separate(out);
    out += "{\"stage\":";
    json_append_string(out, reply.stage);
    if (reply.code == StatusCode::kOk) {
      append(out, ",\"state\":{}", reply.message);
    } else {
      append_member(out, "error", reply.message);
    }
    out += '}';
  }
  out += ']';
}

void append_names(std::string& out, const std::vector<RequestNames::Listed>& listed, std::size_t total) {
  out += ",\"requests\":[";
  for (const RequestNames::Listed& named : listed) {
    separate(out);
    out += "{\"name\":";
    json_append_string(out, named.name);
    out += ",\"ids\":[";
    for (const ReqId id : named.ids) {
      separate(out);
      append(out, "{}", id.value);
    }
    out += "]}";
  }
  append(out, "],\"requests_total\":{}", total);
}

void append_prompts(std::string& out, const std::vector<RequestNames::Listed>& listed) {
  out += ",\"prompts\":{";
  for (const RequestNames::Listed& named : listed) {
    if (named.prompt.empty()) continue;
    separate(out);
    json_append_string(out, named.name);
    out += ':';
    json_append_string(out, named.prompt);
  }
  out += '}';
}

// The lines of all processes by their clocks, those of each in their sequence.
void append_log(std::string& out, const std::vector<LiveLog>& log) {
  static constexpr const char* kLevels[] = {"debug", "info", "warning", "error", "off"};
  std::vector<std::pair<const LiveLog*, const LogTailLine*>> lines;
  for (const LiveLog& process : log) {
    for (const LogTailLine& line : process.lines) lines.emplace_back(&process, &line);
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const auto& a, const auto& b) { return a.second->unix_ms < b.second->unix_ms; });
  if (lines.size() > kMaxLiveLogLines) lines.erase(lines.begin(), lines.end() - kMaxLiveLogLines);
  out += ",\"log\":[";
  for (const auto& [process, line] : lines) {
    separate(out);
    append(out, "{{\"number\":{},\"time_ms\":{},\"level\":\"{}\"", line->number, line->unix_ms,
           kLevels[static_cast<std::size_t>(line->level)]);
    append_member(out, "stage", process->stage);
    append_member(out, "text", line->text);
    out += '}';
  }
  out += ']';
}

void append_histogram(std::string& out, const char* name, const HistogramView& histogram) {
  separate(out);
  append(out, "\"{}\":{{\"count\":{},\"sum\":{:.6g},\"p50\":{:.6g},\"p90\":{:.6g},\"p99\":{:.6g},\"bounds\":[", name,
         histogram.count, histogram.sum, quantile(histogram, 0.5), quantile(histogram, 0.9), quantile(histogram, 0.99));
  for (const double bound : histogram.bounds) separate(out), append(out, "{:.6g}", bound);
  out += "],\"counts\":[";
  for (const uint64_t count : histogram.counts) separate(out), append(out, "{}", count);
  out += "]}";
}

void append_latency(std::string& out, const RequestMetrics& requests) {
  out += ",\"latency\":{";
  append_histogram(out, "time_to_first_token", requests.time_to_first_token());
  append_histogram(out, "inter_token", requests.inter_token_latency());
  append_histogram(out, "end_to_end", requests.request_latency());
  append_histogram(out, "queue", requests.queue_time());
  out += '}';
}

}  // namespace

LiveEvent live_event(ApiContext& context, const std::vector<wire::AdminReply>& replies, const LiveFacts& facts) {
  const Health health = context.pipeline ? context.pipeline->health() : context.engine.health();
  std::string out = "{";
  append(out, "\"time_ms\":{},\"period_ms\":{},\"clients\":{},\"ready\":{}", monotonic_ms(), facts.period_ms,
         facts.clients, health.ready);
  append_member(out, "reason", health.reason);
  append_member(out, "version", context.version);
  append_member(out, "model", context.engine.model().name);
  append(out, ",\"context_length\":{}", context.engine.model().context_length);
  out += ",\"stages\":[";
  for (const wire::StageStatus& stage : health.stages) separate(out), append_live_stage(out, stage);
  out += ']';
  append_links(out, context.engine.links());
  if (health.weights) {
    out += ",\"weights\":";
    append_weights(out, *health.weights);
    out.pop_back();
    append(out, ",\"updates_completed\":{},\"updates_failed\":{}}}", health.weights->completed, health.weights->failed);
  }
  append_schedulers(out, replies);
  const std::vector<RequestNames::Listed> listed = context.state->live.list(kMaxLiveNames);
  append_names(out, listed, context.state->live.size());
  append_latency(out, context.state->requests);
  LiveEvent event;
  if (facts.log != nullptr) {
    event.trusted = out;
    append_prompts(event.trusted, listed);
    append_log(event.trusted, *facts.log);
    event.trusted += '}';
  }
  event.shown = std::move(out += '}');
  return event;
}

}  // namespace millrace::api
