// Metrics: what a scraper reads. Expected lines follow the published text format 0.0.4.
#include "base/metrics.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>
#include <vector>

namespace millrace {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

bool has_line(const std::string& text, const std::string& line) {
  const auto lines = lines_of(text);
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(Metrics, CountersGaugesAndHistogramsAreRendered) {
  Metrics metrics("m:", {{"model_name", "demo"}});
  Counter requests = metrics.counter("requests_total", "Requests.", {{"code", "200"}});
  requests.add();
  requests.add(2);
  Gauge live = metrics.gauge("live", "Live ones.");
  live.set(7);
  live.add(-2);
  Histogram seconds = metrics.histogram("wait_seconds", "Waiting.", {0.1, 1});
  for (double value : {0.05, 0.1, 0.5, 9.0}) seconds.observe(value);
  const std::string text = metrics.render();
  for (const char* line : {
           "# HELP m:requests_total Requests.",
           "# TYPE m:requests_total counter",
           "m:requests_total{model_name=\"demo\",code=\"200\"} 3",
           "# TYPE m:live gauge",
           "m:live{model_name=\"demo\"} 5",
           "# TYPE m:wait_seconds histogram",
           "m:wait_seconds_bucket{model_name=\"demo\",le=\"0.1\"} 2",
           "m:wait_seconds_bucket{model_name=\"demo\",le=\"1\"} 3",
           "m:wait_seconds_bucket{model_name=\"demo\",le=\"+Inf\"} 4",
           "m:wait_seconds_count{model_name=\"demo\"} 4",
           "m:wait_seconds_sum{model_name=\"demo\"} 9.65",
       }) {
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  }
}

TEST(Metrics, OneNameAndOneSetOfLabelsIsOneSeries) {
  Metrics metrics;
  metrics.counter("a_total", "A.", {{"x", "1"}}).add();
  metrics.counter("a_total", "A.", {{"x", "1"}}).add();
  metrics.counter("a_total", "A.", {{"x", "2"}}).add();
  const std::string text = metrics.render();
  EXPECT_TRUE(has_line(text, "a_total{x=\"1\"} 2")) << text;
  EXPECT_TRUE(has_line(text, "a_total{x=\"2\"} 1")) << text;
}

TEST(Metrics, LabelsAreBoundedAndEscaped) {
  Metrics metrics;
  for (std::size_t i = 0; i < 3 * kMaxSeries; ++i) metrics.counter("a_total", "A.", {{"x", std::to_string(i)}}).add();
  metrics.counter("b_total", "B.", {{"x", "a \"b\"\n\\"}}).add();
  metrics.counter("c_total", "C.", {{"x", std::string(1000, 'y')}}).add();
  const std::string text = metrics.render();
  std::size_t series = 0;
  for (const std::string& line : lines_of(text)) series += line.starts_with("a_total{") ? 1 : 0;
  EXPECT_EQ(series, kMaxSeries);
  EXPECT_TRUE(has_line(text, "a_total{x=\"other\"} " + std::to_string(2 * kMaxSeries + 1))) << text;
  EXPECT_TRUE(has_line(text, "b_total{x=\"a \\\"b\\\"\\n\\\\\"} 1")) << text;
  EXPECT_TRUE(has_line(text, "c_total{x=\"" + std::string(kMaxLabelBytes, 'y') + "\"} 1")) << text;
}

TEST(Metrics, SamplesFromElsewhereStandBesideThoseOfTheProcess) {
  Metrics metrics("m:", {{"model_name", "demo"}});
  metrics.gauge("own", "Own.").set(1);
  const std::vector<MetricSample> samples = {
      {"steps_total", "Steps.", {{"stage", "scheduler-0"}}, 4},
      {"steps_total", "Steps.", {{"stage", "scheduler-1"}}, 5},
      {"steps_total", "Steps.", {{"stage", "scheduler-1"}}, 6},  // repeats
      {"free", "Free.", {}, 0.5},
      {"own", "Not own.", {}, 9},  // counted here
      {"bad name", "Bad.", {}, 1},
      {"label", "Bad.", {{"0x", "y"}}, 1},
  };
  const std::string text = metrics.render(samples);
  EXPECT_TRUE(has_line(text, "# TYPE m:steps_total counter")) << text;
  EXPECT_TRUE(has_line(text, "# TYPE m:free gauge")) << text;
  EXPECT_TRUE(has_line(text, "m:steps_total{model_name=\"demo\",stage=\"scheduler-0\"} 4")) << text;
  EXPECT_TRUE(has_line(text, "m:steps_total{model_name=\"demo\",stage=\"scheduler-1\"} 5")) << text;
  EXPECT_TRUE(has_line(text, "m:own{model_name=\"demo\"} 1")) << text;
  for (const char* absent : {"} 6", "} 9", "bad name", "0x"}) EXPECT_EQ(text.find(absent), std::string::npos) << text;
}

TEST(Metrics, AHandleWithoutARegistryDoesNothing) {
  Counter().add();
  Gauge().set(1);
  Histogram().observe(1);
}

TEST(Metrics, AHistogramIsSeenAndItsQuantilesLieInItsBuckets) {
  Metrics metrics;
  Histogram seconds = metrics.histogram("seconds", "Seconds.", {1, 2, 4});
  EXPECT_EQ(quantile(seconds.view(), 0.5), 0);
  for (const double value : {0.5, 0.5, 1.5, 1.5, 1.5, 1.5, 3.0, 3.0, 9.0, 9.0}) seconds.observe(value);
  const HistogramView view = seconds.view();
  EXPECT_EQ(view.bounds, (std::vector<double>{1, 2, 4}));
  EXPECT_EQ(view.counts, (std::vector<uint64_t>{2, 4, 2, 2}));
  EXPECT_EQ(view.count, 10u);
  EXPECT_DOUBLE_EQ(view.sum, 31);
  EXPECT_DOUBLE_EQ(quantile(view, 0.1), 0.5);   // one of the two below 1
  EXPECT_DOUBLE_EQ(quantile(view, 0.5), 1.75);  // three of the four between 1 and 2
  EXPECT_DOUBLE_EQ(quantile(view, 0.8), 4);
  EXPECT_DOUBLE_EQ(quantile(view, 0.99), 4);  // over the last bound: that is all that is known
  EXPECT_EQ(Histogram().view().count, 0u);
}

TEST(Metrics, NothingIsLostBetweenThreads) {
  Metrics metrics;
  constexpr int kThreads = 4, kEach = 5000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&metrics, t] {
      Counter shared = metrics.counter("shared_total", "Shared.");
      Histogram seconds = metrics.histogram("seconds", "Seconds.", {1, 2});
      for (int i = 0; i < kEach; ++i) {
        shared.add();
        seconds.observe(0.5);
        if (i % 1000 == 0) metrics.counter("thread_total", "Of a thread.", {{"t", std::to_string(t)}}).add();
        if (i % 2500 == 0) {
          EXPECT_FALSE(metrics.render().empty());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = metrics.render();
  EXPECT_TRUE(has_line(text, "shared_total " + std::to_string(kThreads * kEach))) << text;
  EXPECT_TRUE(has_line(text, "seconds_count " + std::to_string(kThreads * kEach))) << text;
}

}  // namespace
}  // namespace millrace
