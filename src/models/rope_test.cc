// Inverse frequencies against those of transformers (tests/oracles/rope_inv_freq.py).
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"

namespace millrace {
namespace {

RopeConfig config_of(const Json& from) {
  RopeConfig rope;
  const std::string type = from["rope_type"].get<std::string>();
  rope.type = type == "linear" ? RopeType::kLinear : type == "llama3" ? RopeType::kLlama3 : RopeType::kDefault;
  rope.theta = from["rope_theta"].get<double>();
  rope.factor = from.value("factor", 1.0);
  rope.low_freq_factor = from.value("low_freq_factor", 1.0);
  rope.high_freq_factor = from.value("high_freq_factor", 4.0);
  rope.original_max_position_embeddings = from.value("original_max_position_embeddings", 0);
  return rope;
}

TEST(Rope, InverseFrequenciesEqualTransformers) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/rope/inv_freq.json");
  std::stringstream text;
  text << file.rdbuf();
  const auto cases = parse_json(text.str());
  ASSERT_TRUE(cases.ok()) << cases.status().to_string();
  ASSERT_EQ(cases->size(), 9u);
  for (const Json& one : *cases) {
    const int head_dim = one["head_dim"].get<int>();
    const auto mine = rope_inverse_frequencies(config_of(one), head_dim);
    const Json& theirs = one["inv_freq"];
    ASSERT_EQ(mine.size(), theirs.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const double wanted = theirs[i].get<double>();
      // Two float32 steps: their pow and ours may round differently.
      EXPECT_NEAR(mine[i], wanted, 2.5e-7 * wanted) << one["rope_type"] << " head_dim " << head_dim << " at " << i;
    }
  }
}

}  // namespace
}  // namespace millrace
