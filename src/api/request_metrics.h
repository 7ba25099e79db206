// RequestMetrics: what the api counts of the requests it answers, for /metrics. Times are measured where the client
// sees them: from the request's arrival at its handler to the bytes handed to the connection.
//
// Owned by ApiState, whose Metrics it writes to. Thread safety: all functions from any thread.
#pragma once

#include "base/metrics.h"
#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

class RequestMetrics {
 public:
  explicit RequestMetrics(Metrics& metrics);

  // The first and the further chunks of a streamed text. Answers that are not streamed have neither.
  void first_chunk(double seconds) { ttft_.observe(seconds); }
  // `tokens` new tokens became visible `seconds` after the last ones. Those after the first of them came at once.
  void next_chunk(double seconds, int32_t tokens);
  // More tokens were generated.
  void generated(int32_t tokens) { generation_tokens_.add(tokens); }
  // One choice ended, `seconds` after its request came.
  void ended(const wire::Finish& finish, const wire::Usage& usage, double seconds);
  // A client left before its answer was complete; `choices` were still running.
  void disconnected(std::size_t choices) { aborted("client_disconnected", choices); }
  // By an abort request.
  void cancelled(std::size_t choices) { aborted("abort_request", choices); }
  // What was measured so far.
  HistogramView time_to_first_token() const { return ttft_.view(); }
  HistogramView inter_token_latency() const { return inter_token_.view(); }
  HistogramView request_latency() const { return e2e_.view(); }
  HistogramView queue_time() const { return queue_.view(); }
  // A request ended before anything was generated for it.
  void rejected(StatusCode code);

 private:
  void aborted(const char* where, std::size_t choices);

  Metrics& metrics_;
  Counter prompt_tokens_, generation_tokens_, cached_tokens_;
  Histogram ttft_, inter_token_, e2e_, queue_, prompt_lengths_, generation_lengths_;
};

}  // namespace millrace::api
