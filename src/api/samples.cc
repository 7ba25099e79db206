#include "api/samples.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "api/stage_metric_help.h"
#include "control/counters.h"

namespace millrace::api {
namespace {

constexpr std::size_t kMaxStageLabels = 8;  // of one number of a stage

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// A stage's number may have labels in its name: "control_links_total{event=lost}". What is no such form is left alone.
void split_labels(std::string& name, MetricLabels& labels) {
  const std::size_t open = name.find('{');
  if (open == std::string::npos || name.back() != '}') return;
  const std::string list = name.substr(open + 1, name.size() - open - 2);
  MetricLabels found;
  for (std::size_t at = 0; at <= list.size() && found.size() < kMaxStageLabels;) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string entry = list.substr(at, end - at);
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) return;
    std::string key = entry.substr(0, equals), value = entry.substr(equals + 1);
    if (!is_word(key) || !is_word(value)) return;
    found.emplace_back(std::move(key), std::move(value));
    at = end + 1;
  }
  name.resize(open);
  for (auto& label : found) labels.push_back(std::move(label));
}

// A heartbeat's fixed numbers, then the metrics that the stage sends by name.
void append_samples(std::vector<MetricSample>& out, const wire::StageStatus& stage, bool replicas) {
  MetricLabels labels = {{"stage", stage.stage}};
  if (replicas) labels.emplace_back("replica", std::to_string(stage.replica));
  std::set<std::string_view> sent_by_name;
  for (const wire::Metric& metric : stage.metrics) sent_by_name.insert(metric.name);
  const auto add = [&](const char* name, const char* help, double value) {
    if (!sent_by_name.count(name)) out.push_back({name, help, labels, value});
  };
  add("stage_up", "1 where the stage is ready.", stage.state == wire::StageState::kReady ? 1 : 0);
  if (stage.page_size > 0 || stage.stage.starts_with("scheduler")) {
    const double page = stage.page_size, total = page * stage.pages_total;
    const double available = page * stage.pages_free, cached = page * stage.pages_cached;
    const double used = total - available - cached;
    add("num_running_reqs", "Requests in the running batch.", stage.running);
    add("num_queue_reqs", "Requests that wait for admission.", stage.waiting);
    add("steps_total", "Batches computed.", static_cast<double>(stage.steps));
    add("max_total_num_tokens", "Tokens that the KV cache holds at most.", total);
    add("num_used_tokens", "Tokens of the KV cache that running requests hold.", used);
    add("kv_available_tokens", "Tokens of the KV cache that are free.", available);
    add("kv_evictable_tokens", "Tokens of the prefix cache that no request holds and that may be evicted.", cached);
    add("token_usage", "The part of the KV cache that running requests hold, 0 to 1.", total > 0 ? used / total : 0);
    add("page_size", "Tokens of one page.", page);
    add("num_pages", "Pages of the KV cache.", stage.pages_total);
    add("weight_version", "The version of the weights.", static_cast<double>(stage.weight_version));
  }
  for (const wire::Metric& metric : stage.metrics) {
    MetricSample sample{metric.name, "", labels, metric.value};
    split_labels(sample.name, sample.labels);
    sample.help = stage_metric_help(sample.name);
    out.push_back(std::move(sample));
  }
}

void append_updates(std::vector<MetricSample>& out, const WeightsState& weights) {
  const auto updates = [&out](const char* state, uint64_t count) {
    out.push_back({"weight_updates_total",
                   "Updates of the weights, by how they ended.",
                   {{"state", state}},
                   static_cast<double>(count)});
  };
  updates("completed", weights.completed), updates("failed", weights.failed);
  out.push_back({"generation_paused", "1 while /pause_generation holds.", {}, weights.paused ? 1.0 : 0.0});
}

std::vector<MetricSample> http_samples(const http::ServerStats& stats) {
  return {
      {"http_requests_total", "HTTP requests.", {}, static_cast<double>(stats.requests)},
      {"http_requests_active", "HTTP requests under way.", {}, static_cast<double>(stats.requests_active)},
      {"http_responses_total", "HTTP responses.", {{"status_code", "2xx"}}, static_cast<double>(stats.responses_2xx)},
      {"http_responses_total", "HTTP responses.", {{"status_code", "4xx"}}, static_cast<double>(stats.responses_4xx)},
      {"http_responses_total", "HTTP responses.", {{"status_code", "5xx"}}, static_cast<double>(stats.responses_5xx)},
      {"http_connections_open", "Connections open.", {}, static_cast<double>(stats.connections_open)},
      {"http_disconnects_total",
       "Clients that left before their response ended.",
       {},
       static_cast<double>(stats.disconnects)},
      {"http_slow_readers_total",
       "Clients cut off because they read too slowly.",
       {},
       static_cast<double>(stats.slow_readers)},
  };
}

}  // namespace

std::vector<MetricSample> server_samples(const http::Server& server, const Health& health, bool replicas) {
  std::vector<MetricSample> samples = http_samples(server.stats());
  for (MetricSample& sample : control_samples()) samples.push_back(std::move(sample));
  samples.push_back({"ready", "1 where requests are accepted.", {}, health.ready ? 1.0 : 0.0});
  for (const wire::StageStatus& stage : health.stages) append_samples(samples, stage, replicas);
  if (health.weights) append_updates(samples, *health.weights);
  return samples;
}

std::string pipeline_metrics(const http::Server& server, const PipelineEngine& pipeline) {
  auto samples = server_samples(server, pipeline.health(), true);
  for (MetricSample& sample : pipeline.samples()) samples.push_back(std::move(sample));
  return Metrics("millrace:", {{"pipeline", pipeline.name()}}).render(samples);
}

}  // namespace millrace::api
