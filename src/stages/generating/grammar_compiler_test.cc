#include "stages/generating/grammar_compiler.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/tokenizer.h"

namespace millrace {
namespace {

class GrammarCompilerTest : public ::testing::Test {
 protected:
  GrammarCompilerTest()
      : tokenizer_(Tokenizer::load(MILLRACE_SOURCE_DIR "/models/demo").value()),
        compiler_(tokenizer_, tokenizer_->vocab_size(), {0}) {}

  static GrammarKey key(const std::string& pattern) { return {.kind = wire::GrammarKind::kRegex, .text = pattern}; }
  std::vector<std::pair<ReqId, GrammarCompiler::Compiled>> wait_for_one() {
    while (true) {
      if (auto finished = compiler_.take_finished(); !finished.empty()) return finished;
      std::this_thread::yield();
    }
  }

  const std::shared_ptr<const Tokenizer> tokenizer_;
  GrammarCompiler compiler_;
};

// Ten thousand sources are asked for and dropped: those whose turn has not come leave the queue, whose limit is 64.
TEST_F(GrammarCompilerTest, ASourceThatNoRequestWaitsForLeavesTheQueue) {
  for (uint64_t id = 1; id <= 10'000; ++id) {
    const auto compiled = compiler_.compile(ReqId{id}, key(fmt::format("(a|b){{200}}{}", id)));
    ASSERT_FALSE(compiled) << "request " << id << ": " << compiled->status().message();
    compiler_.drop(ReqId{id});
    EXPECT_EQ(compiler_.waiting(), 0u);
    EXPECT_TRUE(compiler_.take_finished().empty()) << "of dropped requests";
  }
}

TEST_F(GrammarCompilerTest, ASourceOfTwoRequestsIsCompiledForTheOneThatStays) {
  EXPECT_FALSE(compiler_.compile(ReqId{1}, key("first")));
  EXPECT_FALSE(compiler_.compile(ReqId{2}, key("second")));
  EXPECT_FALSE(compiler_.compile(ReqId{3}, key("second")));
  compiler_.drop(ReqId{1});
  compiler_.drop(ReqId{2});
  const auto finished = wait_for_one();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].first, ReqId{3});
  EXPECT_TRUE(finished[0].second.ok());
  EXPECT_EQ(compiler_.waiting(), 0u);
}

TEST(GrammarKeyTest, TheDocumentBeginsBehindTheReasoning) {
  using wire::GrammarKind, wire::ReasoningDialect, grammar::TextStart;
  const auto start = [](GrammarKind kind, const wire::OutputParsing& parsing) {
    wire::SamplingParams sampling;
    sampling.grammar = wire::GrammarSource{kind, "a", "regex"};
    sampling.parsing = parsing;
    return grammar_key(sampling).start;
  };
  const wire::OutputParsing none, may{.reasoning = ReasoningDialect::kThink},
      open{.reasoning = ReasoningDialect::kThink, .reasoning_open = true},
      always{.reasoning = ReasoningDialect::kThinkOpen};
  for (const GrammarKind kind : {GrammarKind::kJsonSchema, GrammarKind::kRegex, GrammarKind::kStructuralTag}) {
    EXPECT_EQ(start(kind, none), TextStart::kContent);
    EXPECT_EQ(start(kind, may), TextStart::kMayReason);
    EXPECT_EQ(start(kind, open), TextStart::kReasons);
    EXPECT_EQ(start(kind, always), TextStart::kReasons);
  }
  EXPECT_EQ(start(GrammarKind::kEbnf, open), TextStart::kContent);
}

}  // namespace
}  // namespace millrace
