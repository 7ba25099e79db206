#include "base/metrics.h"

#include <prometheus/check_names.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "base/status.h"
#include "base/utf8.h"

namespace millrace {

const std::vector<double> kTtftSeconds = {.001, .002, .005, .01, .02, .04, .06, .08, .1, .2, .4,  .6,  .8,
                                          1,    2,    4,    6,   8,   10,  20,  40,  60, 80, 100, 200, 400};
const std::vector<double> kInterTokenSeconds = {.0005, .001, .002, .004, .006, .008, .01, .015, .02,
                                                .025,  .03,  .035, .04,  .06,  .08,  .1,  .2,   .4,
                                                .6,    .8,   1,    2,    4,    6,    8};
const std::vector<double> kRequestSeconds = {.1, .2, .4, .6, .8,  1,   2,   4,   6,    8,    10,
                                             20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400};
const std::vector<double> kQueueSeconds = {0,  .001, .005, .01, .05, .1, .2, .5, 1,  2,   3,   4,   5,  10,
                                           15, 20,   30,   40,  50,  60, 70, 80, 90, 100, 200, 400, 600};
const std::vector<double> kTokenCounts = {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
                                          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};

namespace {

constexpr char kOther[] = "other";

using LabelMap = prometheus::Labels;  // std::map<std::string, std::string>

LabelMap label_map(const MetricLabels& labels) {
  LabelMap out;
  for (const auto& [name, value] : labels) out[name] = std::string(utf8_prefix(value, kMaxLabelBytes));
  return out;
}

bool label_names_are_good(const LabelMap& labels) {
  return std::all_of(labels.begin(), labels.end(),
                     [](const auto& label) { return prometheus::CheckLabelName(label.first); });
}

// The series of one family; the last place is the one that takes what is over the limit.
template <typename T>
class Family {
 public:
  Family(prometheus::Registry& registry, const std::string& name, const std::string& help, const LabelMap& common,
         std::vector<double> buckets = {})
      : family_(prometheus::detail::Builder<T>().Name(name).Help(help).Labels(common).Register(registry)),
        buckets_(std::move(buckets)) {}

  T* series(LabelMap labels) {
    CHECK(label_names_are_good(labels));
    auto found = series_.find(labels);
    if (found != series_.end()) return found->second;
    if (series_.size() >= kMaxSeries - 1) {
      for (auto& [name, value] : labels) value = kOther;
      found = series_.find(labels);
      if (found != series_.end()) return found->second;
    }
    T* made = nullptr;
    if constexpr (std::is_same_v<T, prometheus::Histogram>) {
      made = &family_.Add(labels, buckets_);
    } else {
      made = &family_.Add(labels);
    }
    series_.emplace(std::move(labels), made);
    return made;
  }

 private:
  prometheus::Family<T>& family_;
  const std::vector<double> buckets_;
  std::map<LabelMap, T*> series_;
};

template <typename T>
using Families = std::map<std::string, Family<T>>;

}  // namespace

struct Metrics::Impl {
  Impl(std::string prefix_in, const MetricLabels& labels) : prefix(std::move(prefix_in)), common(label_map(labels)) {
    CHECK(label_names_are_good(common));
  }

  template <typename T>
  T* series(Families<T>& families, const std::string& name, const std::string& help, const MetricLabels& labels,
            std::vector<double> buckets = {}) {
    std::lock_guard lock(mutex);
    auto found = families.find(name);
    if (found == families.end()) {
      CHECK(prometheus::CheckMetricName(prefix + name));
      CHECK(names.insert(name).second);  // one name, one kind
      found = families.try_emplace(name, registry, prefix + name, help, common, std::move(buckets)).first;
    }
    return found->second.series(label_map(labels));
  }

  void add_samples(std::span<const MetricSample> samples, std::vector<prometheus::MetricFamily>& out) const;

  const std::string prefix;
  const LabelMap common;
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Throw};
  mutable std::mutex mutex;  // guards what follows
  std::set<std::string> names;
  Families<prometheus::Counter> counters;
  Families<prometheus::Gauge> gauges;
  Families<prometheus::Histogram> histograms;
};

void Metrics::Impl::add_samples(std::span<const MetricSample> samples,
                                std::vector<prometheus::MetricFamily>& out) const {
  std::map<std::string, std::pair<prometheus::MetricFamily, std::set<LabelMap>>> families;
  std::lock_guard lock(mutex);
  for (const MetricSample& sample : samples.first(std::min(samples.size(), kMaxSamples))) {
    LabelMap labels = label_map(sample.labels);
    labels.insert(common.begin(), common.end());
    const std::string name = prefix + sample.name;
    if (!prometheus::CheckMetricName(name) || names.contains(sample.name) || !label_names_are_good(labels)) continue;
    auto& [family, seen] = families[name];
    if (seen.size() >= kMaxSeries || !seen.insert(labels).second) continue;
    if (family.name.empty()) {
      family.name = name;
      family.help = sample.help;
      family.type = name.ends_with("_total") ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    }
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [label, value] : labels) metric.label.push_back({label, value});
    (family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value) = sample.value;
  }
  for (auto& [name, family] : families) out.push_back(std::move(family.first));
}

Metrics::Metrics(std::string prefix, MetricLabels common) : impl_(std::make_unique<Impl>(std::move(prefix), common)) {}
Metrics::~Metrics() = default;

Counter Metrics::counter(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return Counter(impl_->series(impl_->counters, name, help, labels));
}

Gauge Metrics::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  return Gauge(impl_->series(impl_->gauges, name, help, labels));
}

Histogram Metrics::histogram(const std::string& name, const std::string& help, const std::vector<double>& buckets,
                             const MetricLabels& labels) {
  CHECK(std::adjacent_find(buckets.begin(), buckets.end(), std::greater_equal<>()) == buckets.end());
  return Histogram(impl_->series(impl_->histograms, name, help, labels, buckets));
}

std::string Metrics::render(std::span<const MetricSample> samples) const {
  std::vector<prometheus::MetricFamily> families = impl_->registry.Collect();
  impl_->add_samples(samples, families);
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

void Counter::add(double by) {
  if (impl_ != nullptr) impl_->Increment(by);
}
void Gauge::set(double value) {
  if (impl_ != nullptr) impl_->Set(value);
}
void Gauge::add(double by) {
  if (impl_ != nullptr) impl_->Increment(by);
}
void Histogram::observe(double value) {
  if (impl_ != nullptr) impl_->Observe(value);
}

HistogramView Histogram::view() const {
  HistogramView out;
  if (impl_ == nullptr) return out;
  const prometheus::ClientMetric::Histogram counted = impl_->Collect().histogram;
  uint64_t below = 0;
  for (const prometheus::ClientMetric::Bucket& bucket : counted.bucket) {
    if (std::isfinite(bucket.upper_bound)) out.bounds.push_back(bucket.upper_bound);
    out.counts.push_back(bucket.cumulative_count - std::exchange(below, bucket.cumulative_count));
  }
  out.count = counted.sample_count;
  out.sum = counted.sample_sum;
  return out;
}

double quantile(const HistogramView& histogram, double q) {
  if (histogram.count == 0) return 0;
  CHECK(histogram.counts.size() >= histogram.bounds.size() && q >= 0 && q <= 1);
  const double rank = q * static_cast<double>(histogram.count);
  double below = 0, lower = 0;
  for (std::size_t i = 0; i < histogram.bounds.size(); ++i) {
    const double upper = histogram.bounds[i], inside = static_cast<double>(histogram.counts[i]);
    if (inside > 0 && below + inside >= rank) return lower + (upper - lower) * (rank - below) / inside;
    below += inside;
    lower = upper;
  }
  return lower;
}

}  // namespace millrace
