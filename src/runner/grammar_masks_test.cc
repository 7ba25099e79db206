#include "runner/grammar_masks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/ebnf.h"

namespace millrace {
namespace {

using grammar::allows, grammar::TokenGrammar, grammar::TokenMask;

constexpr int32_t kEnd = 0, kA = 1, kB = 2, kAb = 3, kSpecial = 4, kVocab = 5;

std::shared_ptr<const TokenGrammar> grammar_of(const char* ebnf,
                                               std::vector<std::string> tokens = {"", "a", "b", "ab", ""}) {
  auto compiled = grammar::Grammar::compile(grammar::parse_ebnf(ebnf).value()).value();
  return std::make_shared<const TokenGrammar>(
      TokenGrammar{std::move(compiled), grammar::TokenTrie::build(tokens).value(), {kEnd}});
}

// A step that draws the token behind `generated`, as the scheduler gives it.
SequenceStep step_of(uint64_t request, std::shared_ptr<const TokenGrammar> grammar, std::vector<int32_t> generated) {
  SequenceStep step{.request = ReqId{request}, .tokens = {kB}, .sample = true};
  step.sampling.grammar = std::move(grammar);
  if (!generated.empty()) {
    step.last_is_generated = true;
    step.tokens = {generated.back()};
    generated.pop_back();
    step.generated = generated;
  }
  return step;
}

std::vector<int32_t> allowed(const Result<TokenMask>& mask) {
  std::vector<int32_t> out;
  for (int32_t id = 0; id < kVocab; ++id) {
    if (allows(mask.value(), id)) out.push_back(id);
  }
  return out;
}

TEST(GrammarMasksTest, TokensThatGoOnAndTheEndWhereATextMayEnd) {
  const auto grammar = grammar_of("root ::= \"a\" (\"b\" \"a\"?)*");
  GrammarMasks masks;
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, {}))), (Ids{kA, kAb}));
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, {kA}))), (Ids{kEnd, kB}));
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, {kAb}))), (Ids{kEnd, kA, kB, kAb})) << "another text is read anew";
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, {}))), (Ids{kA, kAb})) << "and a shorter one";
  EXPECT_EQ(allowed(masks.of(step_of(2, grammar, {kA, kB, kA}))), (Ids{kEnd, kB}))
      << "from the middle, as after a retraction";
  EXPECT_EQ(masks.of(step_of(2, grammar, {kA, kA})).status().code(), StatusCode::kInternal);
  EXPECT_EQ(masks.of(step_of(3, grammar, {kSpecial})).status().code(), StatusCode::kInternal);
}

TEST(GrammarMasksTest, WhatIsForgottenIsReadAgain) {
  GrammarMasks masks;
  const auto grammar = grammar_of("root ::= \"ab\"{40}");
  std::vector<int32_t> text(7, kAb);
  const std::vector<int32_t> before = allowed(masks.of(step_of(1, grammar, text)));
  for (uint64_t i = 0; i < kKeptBatches + 2; ++i) masks.end_batch();
  text.push_back(kA);
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, text))), std::vector<int32_t>{kB});
  text.pop_back();
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar, text))), before);
}

TEST(GrammarMasksTest, AnIdThatComesAgainWithAnotherGrammar) {
  GrammarMasks masks;
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar_of("root ::= \"ab\""), {kA}))), std::vector<int32_t>{kB});
  EXPECT_EQ(allowed(masks.of(step_of(1, grammar_of("root ::= \"aa\""), {kA}))), std::vector<int32_t>{kA});
}

TEST(GrammarMasksTest, AVocabularyThatCannotSpellTheTextIsAnError) {
  GrammarMasks masks;
  const Status status = masks.of(step_of(1, grammar_of("root ::= \"ac\""), {kA})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("behind 1 tokens"), std::string_view::npos) << status.message();
}

}  // namespace
}  // namespace millrace
