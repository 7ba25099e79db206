// SpanExporter: sends spans to a collector of OpenTelemetry by OTLP/HTTP in JSON, on a thread of its own. A caller of
// add() never waits: past kMaxQueuedSpans they are dropped and counted, as those are that the collector does not take
// in kExportAttempts.
//
// Owner: the process that makes spans, shared by those that do. Thread safety: add() and the counts from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "http/otlp_json.h"

namespace millrace::http {

inline constexpr std::size_t kMaxQueuedSpans = 8192;
inline constexpr std::size_t kMaxSpansPerExport = 512;
inline constexpr int kExportAttempts = 3;

struct SpanExporterOptions {
  std::string url;                         // of the collector's traces: http://host:4318/v1/traces
  std::vector<std::string> headers;        // "name: value", for a collector that wants a key
  SpanAttributes resource;                 // service.name, ...
  std::string version;                     // of this build
  std::chrono::milliseconds gather{1000};  // how long the first span of an export waits for more
  std::chrono::milliseconds retry{1000};   // before the second attempt; twice as long before the third
};

class SpanExporter : public SpanSink {
 public:
  // kInvalidArgument for a URL that is neither http nor https. Nothing is sent before the first span.
  static Result<std::unique_ptr<SpanExporter>> make(SpanExporterOptions options);
  // Sends what is queued, once; takes a few seconds at most.
  ~SpanExporter() override;

  void add(Span span) override;
  uint64_t exported() const { return exported_; }
  uint64_t dropped() const { return dropped_; }

 private:
  explicit SpanExporter(SpanExporterOptions options);
  void run();
  void gather(std::vector<Span>& batch);
  void send(const std::vector<Span>& batch);
  // One attempt. kUnavailable: another one may succeed.
  Status post(const std::string& body);
  bool wait_before_retry(int attempt);

  const SpanExporterOptions options_;
  BoundedQueue<Span> queue_{kMaxQueuedSpans};
  std::atomic<uint64_t> exported_{0}, dropped_{0};
  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stopping_ = false;                           // under the mutex
  std::chrono::steady_clock::time_point warned_{};  // the thread's
  std::thread thread_;
};

}  // namespace millrace::http
