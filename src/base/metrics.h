// Metrics: counters, gauges and histograms of one process, rendered as Prometheus text. The library behind it
// (prometheus-cpp) is included by metrics.cc alone.
//
//   Metrics metrics("millrace:", {{"model_name", "demo"}});
//   Histogram ttft = metrics.histogram("time_to_first_token_seconds", "From request to first token.", kTtftSeconds);
//   ttft.observe(0.12);
//   std::string page = metrics.render(samples_of_the_stages);
//
// Everything is bounded: a family keeps at most kMaxSeries sets of label values, and what would be one more is counted
// under the value "other" for every label; a label's value is cut at kMaxLabelBytes. Callers never put a request's id
// or a raw path into a label.
//
// Owner: what composes the process. Thread safety: all functions from any thread; handles are small values that may
// be copied and must not outlive their Metrics. A handle without a Metrics does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace millrace {

inline constexpr std::size_t kMaxSeries = 128;     // of one family
inline constexpr std::size_t kMaxLabelBytes = 64;  // of one label's value
inline constexpr std::size_t kMaxSamples = 4096;   // given to one render()

// Upper bounds of the buckets, in seconds: those that dashboards of comparable servers already use.
extern const std::vector<double> kTtftSeconds;
extern const std::vector<double> kInterTokenSeconds;
extern const std::vector<double> kRequestSeconds;  // end to end
extern const std::vector<double> kQueueSeconds;
extern const std::vector<double> kTokenCounts;  // tokens of a prompt or a text

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  Counter() = default;
  void add(double by = 1);  // by >= 0

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* impl) : impl_(impl) {}
  prometheus::Counter* impl_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void set(double value);
  void add(double by);

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* impl) : impl_(impl) {}
  prometheus::Gauge* impl_ = nullptr;
};

// What a histogram has counted.
struct HistogramView {
  std::vector<double> bounds;    // of the buckets
  std::vector<uint64_t> counts;  // in each, not added up; one more than bounds: what is over the last
  uint64_t count = 0;
  double sum = 0;
};

// The value that a fraction `q` (0 to 1) is at most, on a straight line inside its bucket, as Prometheus'
// histogram_quantile has it: what is over the last bound counts as that bound. 0 where nothing was counted.
double quantile(const HistogramView& histogram, double q);

class Histogram {
 public:
  Histogram() = default;
  void observe(double value);
  HistogramView view() const;

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* impl) : impl_(impl) {}
  prometheus::Histogram* impl_ = nullptr;
};

// A number that is known elsewhere (in a stage's heartbeat) and only shown. A name that ends in "_total" is a counter,
// every other a gauge. Where several samples have one name, the first one's help stands.
struct MetricSample {
  std::string name;  // without the prefix
  std::string help;
  MetricLabels labels;
  double value = 0;
};

class Metrics {
 public:
  // `prefix` stands before every name, `common` labels in every series.
  explicit Metrics(std::string prefix = "", MetricLabels common = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The same name and labels give the same series. A name or label that Prometheus does not allow, or one name for two
  // kinds, is a programmer error.
  Counter counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  // Of one family, the first call's buckets count. They grow strictly.
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                      const MetricLabels& labels = {});

  // The text format 0.0.4. Samples with a name that is not allowed, that this process counts itself, or that repeats
  // another sample's labels are left out: they may come from elsewhere.
  std::string render(std::span<const MetricSample> samples = {}) const;

  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
