// A document behind reasoning: the reasoning is free, and the document comes in any case.
#include "grammar/reasoning.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "grammar/state_table.h"
#include "grammar/token_mark.h"

namespace millrace::grammar {
namespace {

const std::vector<std::string> kMarkers = {"<think>", "</think>"};

class ReasoningTest : public testing::TestWithParam<bool> {
 protected:
  // The tags are tokens, or ordinary text.
  std::vector<std::string> markers() const { return GetParam() ? kMarkers : std::vector<std::string>(); }
  std::string open() const { return with_marks("<think>", markers()); }
  std::string close() const { return with_marks("</think>", markers()); }
  void compile(TextStart start) {
    grammar_ = Grammar::compile(behind_reasoning(*parse_json_schema(R"({"enum":[1,20]})"), markers(), start)).value();
  }
  bool accepts(const std::string& text) const {
    StateTable states(grammar_);
    return states.can_end(states.step(states.start(), text));
  }
  bool begins(const std::string& text) const {
    StateTable states(grammar_);
    return states.step(states.start(), text) != kDeadState;
  }

  std::shared_ptr<const Grammar> grammar_;
};

TEST_P(ReasoningTest, TheDocumentComesBehindWhatThePromptOpened) {
  compile(TextStart::kReasons);
  for (const std::string& text : {close() + "1", "So. {" + close() + "\n\n20", open() + "\n" + close() + "\n1"}) {
    EXPECT_TRUE(accepts(text)) << text;
  }
  for (const std::string& text : {std::string(), std::string("So."), std::string("20"), close() + "\n"}) {
    EXPECT_TRUE(begins(text) && !accepts(text)) << text;
  }
  for (const std::string& text : {close() + "3", close() + "\n\n\n", "1" + close() + "2" + close()}) {
    EXPECT_FALSE(begins(text)) << text;
  }
}

TEST_P(ReasoningTest, TheDocumentMayComeAtOnce) {
  compile(TextStart::kMayReason);
  for (const std::string& text : {std::string("20"), open() + "So." + close() + "\n\n1"}) EXPECT_TRUE(accepts(text));
  for (const std::string& text : {std::string(), open(), open() + "So. 20"}) {
    EXPECT_TRUE(begins(text) && !accepts(text)) << text;
  }
  for (const std::string& text : {std::string("S"), std::string("\n"), "1" + close(), open() + close() + open()}) {
    EXPECT_FALSE(begins(text)) << text;
  }
}

TEST_P(ReasoningTest, WithoutReasoningTheDocumentIsAll) {
  compile(TextStart::kContent);
  EXPECT_TRUE(accepts("1"));
  for (const std::string& text : {open(), close(), std::string("S")}) EXPECT_FALSE(begins(text)) << text;
}

// The token that ends a sequence is an added token, which free text takes.
TEST_P(ReasoningTest, TheEndTokenIsForTheEndOfTheDocument) {
  compile(TextStart::kReasons);
  std::vector<std::string> tokens{token_mark("<|end|>"), "a", close(), "1", "20"};
  Matcher matcher(std::make_shared<Masks>(grammar_, TokenTrie::build(tokens).value()));
  const std::vector<int32_t> end{0};
  const auto allowed = [&](const std::vector<int32_t>& read) {
    const TokenMask mask = matcher.mask(read, {}, end).value();
    std::string out;
    for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) out += allows(mask, id) ? '1' : '0';
    return out;
  };
  EXPECT_EQ(allowed({}), "01111");
  EXPECT_EQ(allowed({1}), "01111");
  EXPECT_EQ(allowed({1, 2}), "00011");
  EXPECT_EQ(allowed({1, 2, 4}), "10000");
}

INSTANTIATE_TEST_SUITE_P(Tags, ReasoningTest, testing::Bool());

}  // namespace
}  // namespace millrace::grammar
