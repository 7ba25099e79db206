// Tokens that a grammar leaves no choice about: drawn without logits, beside rows that have some, unless logprobs,
// bans or broken fields want the usual way.
#include <gtest/gtest.h>

#include "grammar/ebnf.h"
#include "models/testing/model_testing.h"
#include "runner/model_runner.h"

namespace millrace {
namespace {

constexpr int32_t kPages = 32, kPageSize = 4;
constexpr int32_t kEnd = 0, kA = 1, kB = 2;

class ForcedTokenTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
    ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
    auto model = load_model_dir(dirs.front(), 7);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    RunnerOptions options{.threads = 2, .page_size = kPageSize, .page_count = kPages};
    auto runner = ModelRunner::make(*model, options);
    ASSERT_TRUE(runner.ok()) << runner.status().to_string();
    runner_ = std::move(runner).value();
    std::vector<std::string> tokens(static_cast<std::size_t>((*model)->config().vocab_size));
    tokens[kA] = "a", tokens[kB] = "b";
    const auto trie = grammar::TokenTrie::build(tokens).value();
    const auto grammar = grammar::Grammar::compile(grammar::parse_ebnf(R"(root ::= "a" ("a" | "b") "b")").value());
    grammar_ = std::make_shared<const grammar::TokenGrammar>(
        grammar::TokenGrammar{grammar.value(), trie, std::vector<int32_t>{kEnd}});
  }
  // Greedy, in pages of its own: the token behind three of a prompt and the generated ones.
  SequenceStep step(uint64_t id, std::vector<int32_t> generated, bool guided = true) const {
    SequenceStep out;
    out.request = ReqId{id};
    out.tokens = {3, 4, 5};
    out.tokens.insert(out.tokens.end(), generated.begin(), generated.end());
    out.pages = {static_cast<int32_t>(2 * id), static_cast<int32_t>(2 * id + 1)};
    out.sample = true;
    out.sampling.temperature = 0;
    if (guided) out.sampling.grammar = grammar_;
    out.generated = generated;
    return out;
  }
  std::vector<SampledToken> run(std::vector<SequenceStep> sequences) {
    EXPECT_TRUE(runner_->submit({.step = ++step_, .sequences = std::move(sequences)}).ok());
    std::optional<BatchResult> result;
    while (!result) result = runner_->poll(1000);
    EXPECT_TRUE(result->status.ok()) << result->status.to_string();
    return std::move(result->tokens);
  }

  std::unique_ptr<ModelRunner> runner_;
  std::shared_ptr<const grammar::TokenGrammar> grammar_;
  uint64_t step_ = 0;
};

TEST_F(ForcedTokenTest, BesideRowsThatHaveAChoice) {
  const int32_t free = run({step(0, {}, false)})[0].token;
  const int32_t chosen = run({step(0, {kA})})[0].token;
  EXPECT_TRUE(chosen == kA || chosen == kB);
  const auto tokens = run({step(0, {}), step(1, {}, false), step(2, {kA, kB}), step(3, {kA}), step(4, {kA, kA, kB})});
  ASSERT_EQ(tokens.size(), 5u);
  const int32_t wanted[] = {kA, free, kB, chosen, kEnd};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_TRUE(tokens[i].status.ok()) << tokens[i].status.to_string();
    EXPECT_EQ(tokens[i].token, wanted[i]) << i;
    EXPECT_EQ(tokens[i].request.value, i);
  }
}

TEST_F(ForcedTokenTest, TheRunBehindATokenIsNamed) {
  using Ids = std::vector<int32_t>;
  SequenceStep chosen = step(0, {kA}), first = step(1, {}), last = step(2, {kA, kB}), cut = step(3, {kA}),
               free = step(4, {}, false), logprobs = step(5, {kA}), banned = step(6, {kA}), unasked = step(7, {kA}),
               end = step(8, {kA, kB, kB});
  for (SequenceStep* one : {&chosen, &first, &last, &free, &logprobs, &banned, &end}) one->forced_limit = 8;
  cut.forced_limit = 1;
  logprobs.sampling.top_logprobs = 0;
  banned.sampling.banned = {kEnd};
  const auto tokens = run({chosen, first, last, cut, free, logprobs, banned, unasked, end});
  const Ids wanted[] = {{kB, kEnd}, {}, {kEnd}, {kB}, {}, {}, {}, {}, {}};
  ASSERT_EQ(tokens.size(), std::size(wanted));
  for (std::size_t i = 0; i < tokens.size(); ++i) EXPECT_EQ(tokens[i].forced, wanted[i]) << i;
  EXPECT_EQ(tokens[8].token, kEnd);
  EXPECT_EQ(run({step(0, {kA, kB})})[0].token, kB) << "to look ahead changes no mask";
}

TEST_F(ForcedTokenTest, AloneInABatch) {
  const auto tokens = run({step(0, {}), step(1, {kA, kB})});
  EXPECT_EQ(tokens[0].token, kA);
  EXPECT_EQ(tokens[1].token, kB);
}

TEST_F(ForcedTokenTest, LogprobsAreThoseOfTheModelAllTheSame) {
  SequenceStep with = step(0, {}), without = step(1, {}, false);
  with.sampling.top_logprobs = without.sampling.top_logprobs = 0;
  with.sampling.logprob_token_ids = without.sampling.logprob_token_ids = {kA};
  const auto tokens = run({with, without});
  EXPECT_EQ(tokens[0].token, kA);
  ASSERT_TRUE(tokens[0].logprobs && tokens[1].logprobs);
  EXPECT_EQ(tokens[0].logprobs->logprob, tokens[1].logprobs->of_ids.at(0));
}

TEST_F(ForcedTokenTest, WhatIsRefusedIsRefused) {
  SequenceStep banned = step(0, {}), broken = step(1, {});
  banned.sampling.banned = {kA};
  broken.sampling.temperature = -1;
  const auto tokens = run({banned, broken, step(2, {})});
  EXPECT_EQ(tokens[0].status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tokens[1].status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(tokens[2].status.ok());
  EXPECT_EQ(tokens[2].token, kA);
}

}  // namespace
}  // namespace millrace
