#include "api/request_metrics.h"

#include "api/request_log.h"

namespace millrace::api {

RequestMetrics::RequestMetrics(Metrics& metrics)
    : metrics_(metrics),
      prompt_tokens_(metrics.counter("prompt_tokens_total", "Prompt tokens of the requests that ended.")),
      generation_tokens_(metrics.counter("generation_tokens_total", "Tokens generated.")),
      cached_tokens_(metrics.counter("cached_tokens_total", "Prompt tokens found in the prefix cache.")),
      ttft_(metrics.histogram("time_to_first_token_seconds",
                              "From a request's arrival to the first chunk of its text, streamed answers only.",
                              kTtftSeconds)),
      inter_token_(metrics.histogram("inter_token_latency_seconds",
                                     "Between two tokens as the client sees them, streamed answers only.",
                                     kInterTokenSeconds)),
      e2e_(metrics.histogram("e2e_request_latency_seconds", "From a request's arrival to the end of its text.",
                             kRequestSeconds)),
      queue_(metrics.histogram("queue_time_seconds", "From acceptance to the first admission into a batch.",
                               kQueueSeconds)),
      prompt_lengths_(metrics.histogram("prompt_tokens_histogram", "Prompt tokens of one request.", kTokenCounts)),
      generation_lengths_(
          metrics.histogram("generation_tokens_histogram", "Tokens generated for one request.", kTokenCounts)) {
  // The series of every outcome are there from the start: a dashboard's rate() needs the zero before the one.
  for (auto reason : {wire::FinishReason::kStop, wire::FinishReason::kLength, wire::FinishReason::kAborted,
                      wire::FinishReason::kError}) {
    metrics_.counter("num_requests_total", "Requests that ended, by how.", {{"finish_reason", reason_name(reason)}});
  }
  disconnected(0);
  cancelled(0);
}

void RequestMetrics::next_chunk(double seconds, int32_t tokens) {
  CHECK(tokens > 0);
  inter_token_.observe(seconds);
  for (int32_t i = 1; i < tokens; ++i) inter_token_.observe(0);
}

void RequestMetrics::ended(const wire::Finish& finish, const wire::Usage& usage, double seconds) {
  metrics_
      .counter("num_requests_total", "Requests that ended, by how.", {{"finish_reason", reason_name(finish.reason)}})
      .add();
  e2e_.observe(seconds);
  if (usage.prompt_tokens == 0) return;  // it never reached the scheduler
  prompt_tokens_.add(usage.prompt_tokens);
  cached_tokens_.add(usage.cached_tokens);
  queue_.observe(usage.queue_seconds);
  prompt_lengths_.observe(usage.prompt_tokens);
  generation_lengths_.observe(usage.completion_tokens);
}

void RequestMetrics::aborted(const char* where, std::size_t choices) {
  metrics_.counter("num_aborted_requests_total", "Requests that were aborted, by whom.", {{"where", where}})
      .add(static_cast<double>(choices));
}

void RequestMetrics::rejected(StatusCode code) {
  metrics_
      .counter("requests_rejected_total", "Requests refused before anything was generated, by the reason.",
               {{"reason", std::string(status_code_name(code))}})
      .add();
}

}  // namespace millrace::api
