// When first tokens come while many prompts wait, in steps.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace millrace
