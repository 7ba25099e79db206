// Requests whose rows another model wants: each row of a capture is computed, whatever is cached, and no token changes.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

RunnerFacts capturing(int32_t pages = 256) {
  RunnerFacts facts = kRoomy;
  facts.layers = 4;
  facts.hidden_size = 1;
  facts.page_count = pages;
  return facts;
}

using Spans = std::vector<std::pair<int32_t, int32_t>>;  // [begin, end)

std::shared_ptr<RowCapture> capture_of(const Spans& spans) {
  auto capture = std::make_shared<RowCapture>(RowCapture{.layer = 2, .hidden_size = 1, .spans = {}});
  for (const auto& [begin, end] : spans) {
    const auto rows = static_cast<std::size_t>(end - begin);
    capture->spans.push_back({begin, end - begin, std::make_shared<std::vector<float>>(rows)});
  }
  return capture;
}

// The fake runner writes a row's position plus one.
void expect_complete(const RowCapture& capture) {
  for (const CapturedSpan& span : capture.spans) {
    for (int32_t i = 0; i < span.rows; ++i) {
      EXPECT_EQ((*span.values)[static_cast<std::size_t>(i)], static_cast<float>(span.begin + i + 1));
    }
  }
}

std::vector<int32_t> alone(uint64_t id, int32_t length, int32_t max_tokens, int32_t first = 1) {
  Harness h(capturing(), {}, endless());
  h.receive(Harness::request(id, prompt(length, first), max_tokens));
  h.run();
  return h.outcomes.at(id).tokens;
}

TEST(Capture, RowsOfACapturePassTheLayersWhateverIsCached) {
  Harness h(capturing(), {}, endless());
  h.receive(Harness::request(1, prompt(64), 4));
  h.run();
  const auto cached_with = [&](uint64_t id, const Spans& spans) {
    const auto capture = capture_of(spans);
    h.receive(Harness::request(id, prompt(64), 4), {.capture = capture});
    h.run();
    expect_complete(*capture);
    EXPECT_EQ(h.outcomes.at(id).tokens, alone(id, 64, 4));
    return h.outcomes.at(id).usage.cached_tokens;
  };
  EXPECT_EQ(cached_with(2, {{20, 30}}), 16) << "the page in which the first row lies is computed";
  EXPECT_EQ(cached_with(3, {{40, 41}, {50, 64}}), 32);
  EXPECT_EQ(cached_with(4, {{0, 1}}), 0);
  EXPECT_EQ(cached_with(5, {}), 48);
  h.expect_clean_end();
}

// Once the prompt was computed, nothing has to be computed again for the capture.
TEST(Capture, ARowThatWasGivenIsNotWantedAgain) {
  Harness h(capturing(), {}, endless());
  std::vector<int32_t> captured_at;  // positions of steps that have it
  h.runner.on_submit = [&](const Batch& batch) {
    for (const SequenceStep& step : batch.sequences) {
      if (step.capture) captured_at.push_back(step.position);
    }
  };
  h.receive(Harness::request(1, prompt(64), 20), {.capture = capture_of({{20, 30}})});
  h.run();
  EXPECT_EQ(captured_at, std::vector<int32_t>{0});
  h.expect_clean_end();
}

TEST(Capture, CompanyChunksAndRetractionsLoseNoRow) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto between = [&](int low, int high) { return low + static_cast<int32_t>(random() % (high - low + 1u)); };
    SchedulerOptions options;
    options.conservativeness = 0;
    options.chunked_prefill_tokens = between(1, 40);
    Harness h(capturing(14), options, endless());
    std::map<uint64_t, std::shared_ptr<RowCapture>> captures;
    std::map<uint64_t, std::vector<int32_t>> wanted;
    for (uint64_t id = 1; id <= 8; ++id) {
      const int32_t length = between(30, 90), first = between(1, 3), tokens = between(1, 40), begin = between(0, 28);
      captures[id] = capture_of({{begin, begin + 1}, {begin + 2, between(begin + 3, length)}});
      wanted[id] = alone(id, length, tokens, first);
      h.receive(Harness::request(id, prompt(length, first), tokens), {.capture = captures[id]});
      for (int steps = between(0, 4); steps > 0; --steps) h.step();
    }
    h.run();
    for (const auto& [id, capture] : captures) {
      expect_complete(*capture);
      EXPECT_EQ(h.outcomes.at(id).tokens, wanted[id]) << id;
    }
    h.expect_clean_end();
  }
}

// As the embedding of a prompt whose rows are averaged is made.
std::shared_ptr<RowCapture> sum_of(int32_t rows) {
  auto sum = std::make_shared<RowSum>();
  sum->values.resize(1);
  return std::make_shared<RowCapture>(
      RowCapture{.layer = 4, .final_norm = true, .hidden_size = 1, .spans = {{0, rows, nullptr}}, .sum = sum});
}

// The weights are switched when the first chunks of a prompt of 200 tokens have been computed.
void switch_in_the_prompt(const std::shared_ptr<RowCapture>& capture, bool paused) {
  Harness h(capturing(), {.chunked_prefill_tokens = 32}, endless());
  h.receive(Harness::request(1, prompt(200), 0), {.capture = capture});
  for (int i = 0; i < 3; ++i) h.step();
  EXPECT_FALSE(h.outcomes.at(1).finish);
  if (paused) {  // retracted before the switch
    h.pause(InFlightPolicy::kRetract);
    h.run();
  }
  h.switch_weights({.version = 2, .policy = paused ? InFlightPolicy::kInPlace : InFlightPolicy::kRetract});
  h.step();
  h.scheduler.resume();
  h.run();
  EXPECT_EQ(h.outcomes.at(1).usage.retractions, 1);
  h.expect_clean_end();
}

// Rows of two versions would make an embedding that no model gives.
TEST(Capture, APromptThatIsComputedAgainWithNewWeightsGivesTheirRowsAlone) {
  for (const bool paused : {false, true}) {
    const auto sum = sum_of(200);
    switch_in_the_prompt(sum, paused);
    EXPECT_EQ(sum->sum->rows, 200);
    EXPECT_EQ(sum->sum->values[0], 200 * 201 / 2 + 200 * 1000);
    const auto rows = capture_of({{10, 20}, {150, 160}});
    switch_in_the_prompt(rows, paused);
    EXPECT_EQ((*rows->spans[0].values)[0], 11 + 1000);
    EXPECT_EQ((*rows->spans[1].values)[0], 151 + 1000);
  }
}

// A capture may bring rows of an earlier prompt; they are of the weights of that time.
TEST(Capture, RowsThatAreKnownAreComputedOnlyWithOtherWeights) {
  for (const bool switched : {false, true}) {
    Harness h(capturing(), {}, endless());
    const auto rows = capture_of({{10, 20}, {40, 50}});
    rows->spans[0].known = true;
    std::ranges::fill(*rows->spans[0].values, 77);
    const auto kept = rows->spans[0].values;
    h.pause(InFlightPolicy::kInPlace);
    h.receive(Harness::request(1, prompt(64), 4), {.capture = rows});
    if (switched) h.switch_weights({.version = 2, .policy = InFlightPolicy::kInPlace});
    h.step();
    h.scheduler.resume();
    h.run();
    EXPECT_EQ((*rows->spans[0].values)[0], switched ? 11 + 1000 : 77);
    EXPECT_EQ((*rows->spans[1].values)[0], 41 + (switched ? 1000 : 0));
    EXPECT_EQ((*kept)[0], 77) << "others may read it";
    h.expect_clean_end();
  }
}

// Their owner may have read them.
TEST(Capture, RowsOfAPromptThatHasItsFirstTokenStayAsTheyAre) {
  Harness h(capturing(), {}, endless());
  const auto rows = capture_of({{10, 20}});
  h.receive(Harness::request(1, prompt(64), 20), {.capture = rows});
  while (h.outcomes[1].tokens.empty()) h.step();
  h.switch_weights({.version = 2, .policy = InFlightPolicy::kRetract});
  h.run();
  EXPECT_EQ(h.outcomes.at(1).versions.back(), 2u);
  expect_complete(*rows);
  h.expect_clean_end();
}

TEST(Capture, ARunnerThatGivesNoRowsRefuses) {
  Harness none(kRoomy, {}, endless());
  none.receive(Harness::request(1, prompt(20), 4), {.capture = capture_of({{3, 5}})});
  EXPECT_EQ(none.outcomes.at(1).finish->code, StatusCode::kInternal);
  Harness h(capturing(), {}, endless());
  h.receive(Harness::request(1, prompt(20), 4), {.capture = capture_of({{18, 21}})});
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kInternal) << "rows behind the prompt";
}

}  // namespace
}  // namespace millrace
