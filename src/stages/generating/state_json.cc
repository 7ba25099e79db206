#include "stages/generating/state_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace {
namespace {

template <typename... Args>
void append(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Before each element but the first of a list that has just begun with '['.
void separate(std::string& out) {
  if (out.back() != '[') out += ',';
}

void append_counts(std::string& out, const SchedulerFacts& facts) {
  append(out,
         "\"steps_total\":{},\"running\":{},\"waiting\":{},\"in_flight\":{},\"paused\":{},\"weight_version\":{},"
         "\"prefill_rows_total\":{},\"decode_rows_total\":{},\"generated_tokens_total\":{},\"prompt_tokens_total\":{},"
         "\"cached_tokens_total\":{},\"evicted_tokens_total\":{},\"retractions_total\":{},\"aborted_total\":{}",
         facts.steps, facts.running, facts.waiting, facts.in_flight, facts.paused, facts.weight_version,
         facts.prefill_rows, facts.decode_rows, facts.generated_tokens, facts.prompt_tokens, facts.cached_tokens,
         facts.evicted_tokens, facts.retractions, facts.aborted);
}

// free + cached + running + importing = total.
void append_pages(std::string& out, const SchedulerFacts& facts, const std::string& map) {
  append(out,
         ",\"pages\":{{\"size\":{},\"total\":{},\"free\":{},\"cached\":{},\"running\":{},\"importing\":{},"
         "\"host_total\":{},\"host_used\":{},\"map\":\"{}\"}}",
         facts.page_size, facts.pages_total, facts.pages_free, facts.pages_cached - facts.pages_locked,
         facts.pages_held + facts.pages_locked, facts.pages_importing, facts.host_pages_total, facts.host_pages_used,
         map);
}

void append_request(std::string& out, const RequestSnapshot& request) {
  separate(out);
  append(
      out,
      "{{\"id\":{},\"state\":\"{}\",\"prompt_tokens\":{},\"cached_tokens\":{},\"output_tokens\":{},\"max_tokens\":{},"
      "\"computed\":{},\"to_compute\":{},\"pages\":{},\"priority\":{},\"retractions\":{},\"age_s\":{:.3f}}}",
      request.id.value, request_state_name(request.state), request.prompt_tokens, request.cached_tokens,
      request.output_tokens, request.max_tokens, request.computed, request.to_compute, request.pages, request.priority,
      request.retractions, request.age_s);
}

void append_requests(std::string& out, const std::vector<RequestSnapshot>& requests,
                     const std::vector<PreparingRequest>& preparing) {
  out += ",\"requests\":[";
  for (const RequestSnapshot& request : requests) append_request(out, request);
  const std::size_t shown = std::min(preparing.size(), kMaxSnapshotRequests);
  for (std::size_t i = 0; i < shown; ++i) {
    const PreparingRequest& request = preparing[i];
    separate(out);
    append(out, "{{\"id\":{},\"state\":\"{}\",\"prompt_tokens\":{},\"priority\":{},\"age_s\":{:.3f}}}",
           request.id.value, request.state, request.prompt_tokens, request.priority, request.age_s);
  }
  append(out, "],\"preparing\":{}", preparing.size());
}

void append_steps(std::string& out, const std::vector<LoggedStep>& steps) {
  out += ",\"steps\":[";
  for (const LoggedStep& step : steps) {
    separate(out);
    append(out, "[{},{},{},{},{}]", step.step, step.prefill_rows, step.decode_rows, step.sequences, step.compute_us);
  }
  out += ']';
}

void append_cache(std::string& out, const CacheSummary& cache) {
  append(out, ",\"cache\":{{\"nodes_total\":{},\"nodes\":[", cache.nodes_total);
  for (const SummaryNode& node : cache.nodes) {
    separate(out);
    append(out, "{{\"id\":{},\"parent\":{},\"begin\":{},\"tokens\":{},\"hits\":{},\"locked\":{},\"on_host\":{}",
           node.serial, node.parent, node.begin, node.tokens, node.hits, node.locked, node.on_host);
    if (node.parent < 0) {
      append(out, ",\"weight_version\":{},\"salted\":{}", node.weight_version, node.has_extra_key);
    }
    out += '}';
  }
  out += "]}";
}

}  // namespace

std::string state_json(const SchedulerSnapshot& snapshot, const std::vector<PreparingRequest>& preparing) {
  std::string out = "{";
  append_counts(out, snapshot.facts);
  append_pages(out, snapshot.facts, snapshot.page_map);
  append_requests(out, snapshot.requests, preparing);
  append_steps(out, snapshot.steps);
  append_cache(out, snapshot.cache);
  return out + "}";
}

}  // namespace millrace
