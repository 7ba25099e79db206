// When first tokens come while many prompts wait, in steps.
#include <gtest/gtest.h>

#include "scheduler/share.h"
#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

// 16 requests with 4 beginnings arrive together. How long one waits for its first token is counted in rows that the
// runner computes meanwhile.
TEST(FirstToken, OfGroupsThatShareAPrefix) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 32;
  Harness h({1000, 256, 16, 256}, options, endless());
  for (uint64_t id = 0; id < 16; ++id) {
    std::vector<int32_t> tokens = prompt(96, static_cast<int32_t>(id % 4) * 200 + 1);
    tokens.push_back(static_cast<int32_t>(id));
    h.receive(Harness::request(id, tokens, 4));
  }
  uint64_t rows = 0, waited = 0;
  while (h.step()) {
    const uint64_t computed = h.scheduler.facts().computed_tokens;
    for (const auto& [id, outcome] : h.outcomes) waited += outcome.tokens.empty() ? computed - rows : 0;
    rows = computed;
  }
  EXPECT_EQ(h.scheduler.facts().prefill_rows, 4u * 96 + 16);  // no beginning twice
  EXPECT_LE(waited, 4600u);                                   // 5068 where beginnings are computed two at a time
  h.expect_clean_end();
}

TEST(FirstToken, PromptsOfOneLengthEndOneAfterTheOther) {
  SchedulerOptions options;
  options.chunked_prefill_tokens = 32;
  Harness h(kRoomy, options, endless());
  for (uint64_t id = 0; id < 4; ++id)
    h.receive(Harness::request(id, prompt(64, static_cast<int32_t>(id) * 100 + 1), 1));
  h.run();
  for (uint64_t id = 0; id < 4; ++id) EXPECT_EQ(h.outcomes.at(id).at_steps.at(0), 2 * id + 2);
  h.expect_clean_end();
}

// A prompt whose beginning is cached has 16 rows to compute; they do not wait for 496 of a long prompt.
TEST(FirstToken, OfAPromptThatIsCachedWaitsForNoLongChunk) {
  Harness h({1000, 20000, 16, 2000}, {}, endless());
  h.receive(Harness::request(1, prompt(160), 1));
  h.run();
  h.receive(Harness::request(2, prompt(4000, 300), 1));
  h.step();
  uint64_t rows = 0;
  h.runner.on_submit = [&](const Batch& batch) {
    const auto is_short = [](const SequenceStep& step) { return step.request == ReqId{3}; };
    if (std::ranges::none_of(batch.sequences, is_short)) return;
    for (const SequenceStep& step : batch.sequences) rows += step.tokens.size();
  };
  std::vector<int32_t> tokens = prompt(160);
  for (int32_t i = 0; i < 16; ++i) tokens.push_back(700 + i);
  h.receive(Harness::request(3, tokens, 1));
  h.run();
  EXPECT_EQ(rows, 16u + kMinRowsBesideEnds);
  EXPECT_LE(h.outcomes.at(2).at_steps.at(0), 11u);  // eight steps of 512 rows, one more and the step of request 1
  h.expect_clean_end();
}

// Short prompts of which some end in each step take at most their part of it from a long one.
TEST(FirstToken, OfALongPromptComesInSpiteOfAStreamOfShortOnes) {
  Harness h({1000, 20000, 16, 2000}, {}, endless());
  h.receive(Harness::request(1, prompt(4000), 1));
  for (uint64_t id = 2; h.outcomes[1].tokens.empty() && id < 1000; ++id) {
    h.receive(Harness::request(id, prompt(16, static_cast<int32_t>(id)), 1));
    h.step();
  }
  EXPECT_LE(h.outcomes.at(1).at_steps.at(0), 4000u / kMinRowsBesideEnds + 2);
  h.run();
  h.expect_clean_end();
}

}  // namespace
}  // namespace millrace
