// Figures of a load test against sums done by hand, and the forms in which they are reported.
#include "load/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace millrace::load {
namespace {

TEST(Quantiles, AreTheNearestRanks) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  const Quantiles q = quantiles(values);
  EXPECT_DOUBLE_EQ(q.mean, 100.5);
  EXPECT_DOUBLE_EQ(q.p50, 100);
  EXPECT_DOUBLE_EQ(q.p90, 180);
  EXPECT_DOUBLE_EQ(q.p95, 190);
  EXPECT_DOUBLE_EQ(q.p99, 198);
  EXPECT_DOUBLE_EQ(q.max, 200);
  EXPECT_DOUBLE_EQ(quantiles({7}).p99, 7);
  EXPECT_DOUBLE_EQ(quantiles({}).max, 0);
}

// Two answers and a refusal, over two seconds.
std::vector<Outcome> outcomes() {
  return {
      {.begin_us = 0,
       .first_us = 100'000,
       .end_us = 400'000,
       .prompt_tokens = 10,
       .answer_tokens = 4,
       .gaps_us = {50'000, 150'000}},
      {.begin_us = 500'000,
       .first_us = 800'000,
       .end_us = 2'000'000,
       .prompt_tokens = 30,
       .answer_tokens = 6,
       .gaps_us = {100'000}},
      {.begin_us = 1'000'000, .end_us = 1'100'000, .prompt_tokens = 99, .error = "HTTP 429: \"busy\" <now>"},
  };
}

TEST(Summary, CountsWhatWasAnsweredAndNamesWhatWasNot) {
  const Summary s = summarize(outcomes());
  EXPECT_EQ(s.requests, 3);
  EXPECT_EQ(s.failed, 1);
  EXPECT_DOUBLE_EQ(s.seconds, 2.0);
  EXPECT_DOUBLE_EQ(s.requests_per_s, 1.0);
  EXPECT_DOUBLE_EQ(s.prompt_tokens_per_s, 20.0);
  EXPECT_DOUBLE_EQ(s.answer_tokens_per_s, 5.0);
  EXPECT_DOUBLE_EQ(s.ttft_ms.p50, 100.0);
  EXPECT_DOUBLE_EQ(s.ttft_ms.max, 300.0);
  EXPECT_DOUBLE_EQ(s.inter_token_ms.mean, 100.0);
  EXPECT_DOUBLE_EQ(s.end_to_end_ms.max, 1500.0);
  ASSERT_EQ(s.errors.size(), 1u);
  EXPECT_EQ(s.errors[0].second, 1);
  EXPECT_NE(to_text(s).find("3 requests in 2.00 s, 1 failed: 1.00 requests/s"), std::string::npos) << to_text(s);
  EXPECT_EQ(summarize({}).requests, 0);
}

TEST(Summary, JsonHoldsTheFiguresAndEachRequest) {
  const auto all = outcomes();
  const auto json = parse_json(to_json(summarize(all), R"({"clients":2})", all));
  ASSERT_TRUE(json.ok()) << json.status().to_string();
  EXPECT_EQ((*json)["about"]["clients"], 2);
  EXPECT_EQ((*json)["failed"], 1);
  EXPECT_DOUBLE_EQ((*json)["ttft_ms"]["max"].get<double>(), 300.0);
  ASSERT_EQ((*json)["each"].size(), 3u);
  EXPECT_EQ((*json)["each"][1]["first_us"], 800'000);
  EXPECT_EQ((*json)["each"][2]["error"], all[2].error);
}

TEST(Plot, IsWellFormedForAnyOutcome) {
  const std::vector<Outcome> none, failed = {{.end_us = 5, .error = "no"}};
  for (const auto& each : {outcomes(), none, failed}) {
    const std::string svg = to_svg(summarize(each), {"a <title> & more", "and <options>"}, each);
    EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    EXPECT_NE(svg.find("a &lt;title&gt; &amp; more"), std::string::npos);
    EXPECT_NE(svg.find("and &lt;options&gt;"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    std::size_t open = 0, close = 0;
    for (std::size_t at = 0; (at = svg.find("<g ", at)) != std::string::npos; ++at) ++open;
    for (std::size_t at = 0; (at = svg.find("</g>", at)) != std::string::npos; ++at) ++close;
    EXPECT_EQ(open, 4u);
    EXPECT_EQ(close, 4u);
  }
}

TEST(Plot, MarksQuantilesAndHasALogarithmicAxisOfGaps) {
  Outcome one{.begin_us = 0, .first_us = 10'000, .end_us = 2'000'000, .answer_tokens = 101};
  for (int i = 1; i <= 100; ++i) one.gaps_us.push_back(i == 100 ? 900'000 : 1000 * i / 10 + 1000);
  const std::vector<Outcome> outcomes = {one};
  const Summary summary = summarize(outcomes);
  const std::string svg = to_svg(summary, {"title", ""}, outcomes);
  const std::size_t begin = svg.find(">Inter-token<");
  const std::string gaps = svg.substr(begin, svg.find("</g>", begin) - begin);
  EXPECT_NE(gaps.find("milliseconds, logarithmic"), std::string::npos);
  for (const char* tick : {">1<", ">10<", ">100<", ">1000<"}) EXPECT_NE(gaps.find(tick), std::string::npos) << tick;
  const std::pair<const char*, double> marks[] = {
      {"p50", summary.inter_token_ms.p50}, {"p90", summary.inter_token_ms.p90}, {"p99", summary.inter_token_ms.p99}};
  for (const auto& [name, value] : marks) {
    EXPECT_NE(gaps.find(fmt::format(">{} {:.4g}<", name, value)), std::string::npos) << name;
  }
  // 1 ms to 1 s are three decades of 380 units; 6 ms, the median, lies log10(6) decades in.
  const std::size_t mark = gaps.rfind("class=\"mark\" x1=\"");  // drawn last: the median
  EXPECT_NEAR(std::stod(gaps.substr(mark + 17)), 380 / 3.0 * std::log10(summary.inter_token_ms.p50), 0.1);
  EXPECT_EQ(svg.find("logarithmic", svg.find("End to end")), std::string::npos);
}

}  // namespace
}  // namespace millrace::load
