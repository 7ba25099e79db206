// Prompts with pictures: what their pages share, and what they never share.
#include <gtest/gtest.h>

#include "scheduler/testing/harness.h"

namespace millrace {
namespace {

using testing::endless;
using testing::Harness;
using testing::kRoomy;
using testing::prompt;

constexpr int32_t kPlaceholder = 999;

RunnerFacts with_media() {
  RunnerFacts facts = kRoomy;
  facts.takes_media = true;
  facts.hidden_size = 1;
  return facts;
}

struct Picture {
  std::string digest;
  int32_t begin = 0;
  int32_t rows = 0;
};

// A prompt of 64 tokens with these pictures in it.
void receive(Harness& h, uint64_t id, const std::vector<Picture>& pictures, int32_t max_tokens = 4) {
  wire::TokenizedRequest request = Harness::request(id, prompt(64), max_tokens);
  auto input = std::make_shared<PromptInput>();
  for (const Picture& picture : pictures) {
    std::fill_n(request.prompt.begin() + picture.begin, picture.rows, kPlaceholder);
    request.media.push_back({.begin = picture.begin, .rows = picture.rows});
    auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(picture.rows));
    input->spans.push_back({picture.begin, picture.digest, {picture.rows, 1, 1, std::move(values)}});
  }
  h.receive(request, {.input = std::move(input)});
}

int32_t cached(Harness& h, uint64_t id, const std::vector<Picture>& pictures) {
  receive(h, id, pictures);
  h.run();
  EXPECT_EQ(h.outcomes.at(id).finish->reason, wire::FinishReason::kLength);
  return h.outcomes.at(id).usage.cached_tokens;
}

TEST(Media, EqualPicturesShareTheirPages) {
  Harness h(with_media(), {}, endless());
  EXPECT_EQ(cached(h, 1, {{"a", 20, 30}}), 0);
  EXPECT_EQ(cached(h, 2, {{"a", 20, 30}}), 48);
  h.expect_clean_end();
}

TEST(Media, AnotherPictureSharesWhatStandsBeforeIt) {
  Harness h(with_media(), {}, endless());
  EXPECT_EQ(cached(h, 1, {{"a", 20, 10}, {"b", 40, 10}}), 0);
  EXPECT_EQ(cached(h, 2, {{"c", 20, 10}, {"b", 40, 10}}), 16) << "the first page alone is before it";
  EXPECT_EQ(cached(h, 3, {{"a", 20, 10}, {"c", 40, 10}}), 32);
  EXPECT_EQ(cached(h, 4, {{"a", 20, 10}, {"b", 40, 10}}), 48);
  h.expect_clean_end();
}

TEST(Media, TextWithPlaceholdersIsNoPicture) {
  Harness h(with_media(), {}, endless());
  EXPECT_EQ(cached(h, 1, {{"a", 0, 40}}), 0);
  wire::TokenizedRequest text = Harness::request(2, prompt(64), 4);
  std::fill_n(text.prompt.begin(), 40, kPlaceholder);
  h.receive(text);
  h.run();
  EXPECT_EQ(h.outcomes.at(2).usage.cached_tokens, 0);
  EXPECT_NE(h.outcomes.at(1).tokens, h.outcomes.at(2).tokens);
  h.expect_clean_end();
}

TEST(Media, RetractionComputesThePictureAgain) {
  RunnerFacts facts = with_media();
  facts.page_count = 12;
  SchedulerOptions options;
  options.conservativeness = 0;
  Harness h(facts, options, endless());
  for (uint64_t id = 1; id <= 4; ++id) receive(h, id, {{std::to_string(id), 10, 40}}, 60);
  h.run();
  EXPECT_GT(h.scheduler.facts().retractions, 0u);
  Harness alone(with_media(), {}, endless());
  for (uint64_t id = 1; id <= 4; ++id) receive(alone, id, {{std::to_string(id), 10, 40}}, 60);
  alone.run();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(h.outcomes.at(id).tokens, alone.outcomes.at(id).tokens) << id;
  h.expect_clean_end();
}

TEST(Media, RefusesWhatTheRunnerCannotCompute) {
  Harness text(kRoomy, {}, endless());
  receive(text, 1, {{"a", 20, 10}});
  EXPECT_EQ(text.outcomes.at(1).finish->code, StatusCode::kUnsupported);
  Harness h(with_media(), {}, endless());
  wire::TokenizedRequest request = Harness::request(1, prompt(64), 4);
  request.media.push_back({.begin = 3, .rows = 5});
  h.receive(request);
  EXPECT_EQ(h.outcomes.at(1).finish->code, StatusCode::kInternal) << "a picture that was not encoded";
  request = Harness::request(2, prompt(64), 4);
  request.sampling.prompt_logprobs_from = 0;
  request.media.push_back({.begin = 3, .rows = 1});
  auto input = std::make_shared<PromptInput>();
  input->spans.push_back({3, "a", {1, 1, 1, std::make_shared<std::vector<float>>(1)}});
  h.receive(request, {.input = std::move(input)});
  EXPECT_EQ(h.outcomes.at(2).finish->code, StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
