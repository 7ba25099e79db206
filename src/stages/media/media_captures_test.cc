// Rows that are kept from request to request: known again behind the same prompt, and behind no other.
#include "stages/media/media_captures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace millrace {
namespace {

constexpr int64_t kHidden = 2;

PromptInput input_of(const std::vector<std::tuple<int32_t, int32_t, std::string>>& spans) {
  PromptInput input;
  for (const auto& [begin, rows, digest] : spans) input.spans.push_back({begin, digest, {.rows = rows}});
  return input;
}

std::vector<int32_t> ids(int32_t count) {
  std::vector<int32_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), 100);
  return out;
}

// As a runner does it: each captured row is its number, from `first` on.
std::vector<float> compute(MediaCaptures& captures, const MediaCaptures::Wanted& wanted, float first,
                           uint64_t version = 1) {
  for (const CapturedSpan& span : wanted.capture->spans) {
    if (!span.known) std::iota(span.values->begin(), span.values->end(), first);
  }
  const SharedTensor rows = captures.finish(wanted, version);
  EXPECT_EQ(rows.shape[1], kHidden);
  const auto values = rows.view().as<float>();
  return {values.begin(), values.end()};
}

TEST(MediaCaptures, ASecondTurnComputesTheRowsOfThatTurnAlone) {
  MediaCaptures captures(3, kHidden);
  const auto prompt = ids(20);
  const auto first = captures.begin(prompt, input_of({{4, 2, "a"}}), 1);
  EXPECT_EQ(first.capture->next(0), 4);
  EXPECT_EQ(first.capture->layer, 3);
  EXPECT_EQ(compute(captures, first, 1), (std::vector<float>{1, 2, 3, 4}));
  const auto again = captures.begin(prompt, input_of({{4, 2, "a"}}), 1);
  EXPECT_EQ(again.capture->next(0), kNoRow) << "all rows are known";
  EXPECT_EQ(compute(captures, again, 50), (std::vector<float>{1, 2, 3, 4}));
  const auto second = captures.begin(prompt, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1);
  EXPECT_EQ(second.capture->next(0), 10);
  EXPECT_EQ(compute(captures, second, 50), (std::vector<float>{1, 2, 3, 4, 50, 51}));
}

TEST(MediaCaptures, AnotherPromptMediumOrVersionIsAnother) {
  MediaCaptures captures(3, kHidden);
  const auto prompt = ids(20);
  compute(captures, captures.begin(prompt, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1), 1);
  const auto known = [&](const std::vector<int32_t>& text, const PromptInput& input, uint64_t version) {
    return std::ranges::count(captures.begin(text, input, version).capture->spans, true, &CapturedSpan::known);
  };
  EXPECT_EQ(known(prompt, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1), 2);
  EXPECT_EQ(known(prompt, input_of({{4, 2, "a"}, {10, 1, "c"}}), 1), 1);
  EXPECT_EQ(known(prompt, input_of({{4, 2, "c"}, {10, 1, "b"}}), 1), 0);
  EXPECT_EQ(known(prompt, input_of({{4, 3, "a"}, {10, 1, "b"}}), 1), 0);
  EXPECT_EQ(known(prompt, input_of({{5, 2, "a"}, {10, 1, "b"}}), 1), 0);
  EXPECT_EQ(known(prompt, input_of({{4, 2, "a"}, {10, 1, "b"}}), 2), 0);
  auto other = prompt;
  other[8] = 7;
  EXPECT_EQ(known(other, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1), 1);
  other[2] = 7;
  EXPECT_EQ(known(other, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1), 0);
  other = prompt;
  other[5] = 7;  // a placeholder
  EXPECT_EQ(known(other, input_of({{4, 2, "a"}, {10, 1, "b"}}), 1), 2);
}

TEST(MediaCaptures, RowsOfTwoVersionsAreGivenAndNotKept) {
  MediaCaptures captures(3, kHidden);
  const auto prompt = ids(20);
  const auto wanted = captures.begin(prompt, input_of({{4, 2, "a"}}), 1);
  EXPECT_EQ(compute(captures, wanted, 1, 2).size(), 4u);
  EXPECT_EQ(captures.cached_bytes(), 0u);
  EXPECT_EQ(captures.begin(prompt, input_of({{4, 2, "a"}}), 1).capture->next(0), 4);
}

TEST(MediaCaptures, OtherWeightsMakeKnownRowsAnewAndLeaveThoseThatAreKept) {
  MediaCaptures captures(3, kHidden);
  const auto prompt = ids(20);
  compute(captures, captures.begin(prompt, input_of({{4, 2, "a"}}), 1), 1);
  const auto waits = captures.begin(prompt, input_of({{4, 2, "a"}}), 1);
  const auto runs = captures.begin(prompt, input_of({{4, 2, "a"}}), 1);
  waits.capture->restart();
  EXPECT_EQ(waits.capture->next(0), 4);
  EXPECT_EQ(compute(captures, waits, 50, 2), (std::vector<float>{50, 51, 52, 53}));
  EXPECT_EQ(compute(captures, runs, 70), (std::vector<float>{1, 2, 3, 4}));
}

TEST(MediaCaptures, TheOldestGoOverTheLimit) {
  const std::size_t span_bytes = 2 * kHidden * sizeof(float);
  MediaCaptures captures(3, kHidden, 2 * span_bytes);
  const auto prompt = ids(20);
  const auto compute_one = [&](const std::string& digest) {
    const auto wanted = captures.begin(prompt, input_of({{4, 2, digest}}), 1);
    compute(captures, wanted, 1);
    return wanted.capture->next(0) == kNoRow;
  };
  EXPECT_FALSE(compute_one("a"));
  EXPECT_FALSE(compute_one("b"));
  EXPECT_TRUE(compute_one("a"));
  EXPECT_FALSE(compute_one("c"));
  EXPECT_TRUE(compute_one("a"));
  EXPECT_FALSE(compute_one("b")) << "it went when c came";
  EXPECT_LE(captures.cached_bytes(), 2 * span_bytes);
  captures.flush();
  EXPECT_FALSE(compute_one("a"));
}

}  // namespace
}  // namespace millrace
