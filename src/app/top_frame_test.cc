// A frame of `millrace top`: numbers of all schedulers, rates of the last events, and lines that fit the terminal.
#include "app/top_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

Json state(int generated, Json requests = Json::array()) {
  return {{"running", 1},
          {"waiting", 2},
          {"preparing", 0},
          {"generated_tokens_total", generated},
          {"prefill_rows_total", 5 * generated},
          {"prompt_tokens_total", 100},
          {"cached_tokens_total", 25},
          {"weight_version", 3},
          {"pages", {{"size", 16}, {"total", 10}, {"free", 5}, {"cached", 3}, {"running", 2}, {"importing", 0}}},
          {"steps", {{7, 0, 3, 3, 900}, {8, 16, 3, 4, 1200}}},
          {"requests", std::move(requests)}};
}

Json event(double time_ms, Json schedulers) {
  return {{"time_ms", time_ms},
          {"ready", true},
          {"model", "demo"},
          {"stages", {{{"stage", "scheduler"}, {"state", "ready"}, {"running", 1}, {"waiting", 2}}}},
          {"schedulers", std::move(schedulers)},
          {"requests", {{{"name", "batch"}, {"ids", {4, 5}}}, {{"name", "batch_0"}, {"ids", {4}}}}},
          {"latency", {{"end_to_end", {{"count", 3}, {"p50", 0.25}, {"p90", 1.5}, {"p99", 0.004}}}}}};
}

Json one(int generated, Json requests = Json::array()) {
  return Json::array({{{"stage", "scheduler"}, {"state", state(generated, std::move(requests))}}});
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TopFrame, NothingBeforeTheFirstEvent) { EXPECT_EQ(TopFrame().render({}), ""); }

TEST(TopFrame, NumbersAndRates) {
  TopFrame frame;
  frame.add(event(1000, one(100)));
  frame.add(event(1500, one(150)));
  const std::string text = frame.render({});
  for (const char* part :
       {"millrace demo  ready  1 running, 2 waiting  weights 3", "generated      100 tokens/s",
        "prompts        500 tokens/s", "25 % from the cache", "2 running, 3 cached, 5 free of 10 pages",
        "step 8: 16 prefill + 3 decode rows", "latency    p50 p90 p99   answer 0.25 s 1.5 s 4.0 ms",
        "scheduler ready 1+2", "no request runs or waits"}) {
    EXPECT_TRUE(has(text, part)) << part << " in\n" << text;
  }
}

TEST(TopFrame, ACounterThatFellBeginsAnew) {
  TopFrame frame;
  frame.add(event(1000, one(100)));
  frame.add(event(1500, one(10)));
  EXPECT_TRUE(has(frame.render({}), "generated        0 tokens/s"));
}

TEST(TopFrame, RequestsByState) {
  const Json requests =
      Json::array({{{"id", 9}, {"state", "queued"}, {"prompt_tokens", 11}, {"max_tokens", 7}},
                   {{"id", 4}, {"state", "prefilling"}, {"prompt_tokens", 40}, {"computed", 16}, {"to_compute", 40}},
                   {{"id", 5}, {"state", "decoding"}, {"output_tokens", 3}, {"max_tokens", 8}, {"age_s", 12.2}}});
  TopFrame frame;
  frame.add(event(1000, one(100, requests)));
  const std::string text = frame.render({});
  const std::size_t decodes = text.find("decoding   batch "), prefills = text.find("prefilling batch_0");
  const std::size_t queued = text.find("queued     #9");
  EXPECT_TRUE(decodes < prefills && prefills < queued && queued != std::string::npos) << text;
  EXPECT_TRUE(has(text, "3 of 8") && has(text, "16 of 40") && has(text, "12 s")) << text;
  // A small terminal shows as many as fit.
  const std::string small = frame.render({.columns = 80, .rows = 12});
  EXPECT_TRUE(has(small, "and 2 more")) << small;
  EXPECT_LE(std::ranges::count(small, '\n'), 12);
}

TEST(TopFrame, SeveralSchedulersAddUpAndAnErrorIsShown) {
  Json schedulers = one(100);
  schedulers.push_back({{"stage", "scheduler-1"}, {"state", state(50)}});
  schedulers.push_back({{"stage", "scheduler-2"}, {"error", "did not answer"}});
  TopFrame frame;
  frame.add(event(1000, schedulers));
  const std::string text = frame.render({});
  EXPECT_TRUE(has(text, "2 running, 4 waiting")) << text;
  EXPECT_TRUE(has(text, "pages scheduler-1") && has(text, "scheduler-2: did not answer")) << text;
}

TEST(TopFrame, LinesFitAndNamesMoveNoCursor) {
  Json requests = Json::array({{{"id", 4}, {"state", "queued"}}});
  Json hostile = event(1000, one(1, requests));
  hostile["requests"][1]["name"] = "\033[2J" + std::string(300, 'x') + "żółć";
  TopFrame frame;
  frame.add(hostile);
  for (const int columns : {20, 40, 80, 200}) {
    const std::string text = frame.render({.columns = columns});
    EXPECT_FALSE(has(text, "\033"));
    int width = 0;
    for (const char c : text) {
      width = c == '\n' ? 0 : width + ((static_cast<unsigned char>(c) & 0xC0) != 0x80);
      EXPECT_LE(width, columns);
    }
  }
  EXPECT_TRUE(has(frame.render({.columns = 80, .color = true}), "\033[1mmillrace demo\033[0m"));
}

TEST(TopFrame, AnEventOfAnotherShapeIsShownAsFarAsItGoes) {
  for (const Json& strange : {Json::object(), Json::array(), Json("text"), Json({{"schedulers", 5}, {"requests", {1}}}),
                              Json({{"schedulers", {1, {{"state", {{"steps", {1, {2}}}, {"requests", {7}}}}}}}})}) {
    TopFrame frame;
    frame.add(strange);
    frame.add(strange);
    EXPECT_TRUE(has(frame.render({}), "latency"));
  }
}

}  // namespace
}  // namespace millrace
