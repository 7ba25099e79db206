// The greedy token of a masked row is that of the row with -inf where the mask forbids, for masks of any density.
#include "runner/masked_row.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "runner/sampler.h"

namespace millrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> forbidden_as_never(std::vector<float> row, const grammar::TokenMask& mask) {
  for (std::size_t id = 0; id < row.size(); ++id) {
    if (!grammar::allows(mask, static_cast<int32_t>(id))) row[id] = -kInfinity;
  }
  return row;
}

grammar::TokenMask random_mask(std::mt19937& random, std::size_t tokens, double density) {
  std::bernoulli_distribution allowed(density);
  grammar::TokenMask mask((tokens + 63) / 64, 0);
  for (std::size_t id = 0; id < mask.size() * 64; ++id) {  // the last word may have bits that stand for no token
    if (allowed(random)) grammar::allow(mask, static_cast<int32_t>(id));
  }
  return mask;
}

TEST(MaskedRow, TheGreedyTokenOfAnyMask) {
  std::mt19937 random(11);
  for (const std::size_t tokens : {1u, 63u, 64u, 65u, 1000u, 1024u}) {
    for (const double density : {0.0, 0.01, 0.1, 0.5, 0.9, 1.0}) {
      for (int round = 0; round < 50; ++round) {
        std::uniform_int_distribution<int> level(0, round);  // few: many logits are equal
        std::vector<float> row(tokens), filled;
        for (float& logit : row)
          logit = level(random) == 0 && round > 25 ? -kInfinity : static_cast<float>(level(random));
        const grammar::TokenMask mask = random_mask(random, tokens, density);
        const std::vector<float> other = forbidden_as_never(row, mask);
        ASSERT_TRUE(fill_masked_row(row, mask, filled).ok());
        EXPECT_EQ(filled, other);
        const Result<int32_t> wanted = greedy_token(other), token = masked_greedy_token(row, mask);
        ASSERT_EQ(token.ok(), wanted.ok());
        if (wanted.ok()) {
          EXPECT_EQ(*token, *wanted) << tokens << " tokens, density " << density;
        } else {
          EXPECT_EQ(token.status().message(), wanted.status().message());
        }
      }
    }
  }
}

TEST(MaskedRow, AMaskOfOneToken) {
  grammar::TokenMask mask(4, 0);
  EXPECT_EQ(only_token(mask), std::nullopt);
  for (const int32_t id : {0, 63, 64, 255}) {
    grammar::TokenMask one = mask;
    grammar::allow(one, id);
    EXPECT_EQ(only_token(one), id);
    for (const int32_t other : {1, 62, 65, 254}) {
      grammar::TokenMask two = one;
      grammar::allow(two, other);
      EXPECT_EQ(only_token(two), std::nullopt);
    }
  }
}

TEST(MaskedRow, ABrokenLogitFailsWhereverItIs) {
  std::mt19937 random(12);
  const grammar::TokenMask mask = random_mask(random, 200, 0.3);
  for (const float broken : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 200; ++at) {
      std::vector<float> row(200, 1.0f), filled;
      row[at] = broken;
      const std::string wanted = greedy_token(row).status().message();
      EXPECT_EQ(masked_greedy_token(row, mask).status().message(), wanted);
      EXPECT_EQ(fill_masked_row(row, mask, filled).message(), wanted);
    }
  }
}

}  // namespace
}  // namespace millrace
