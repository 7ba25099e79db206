// Positions of random prompts with pictures and videos against transformers' get_rope_index
// (tests/oracles/vision_positions.py).
#include "models/vision/mrope.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/mapped_file.h"

namespace millrace {
namespace {

using nlohmann::json;

// FNV-1a, 64 bits, of the positions as little-endian int32.
std::string hash_of(const MropePositions& positions) {
  uint64_t value = 0xCBF29CE484222325ull;
  for (const auto& row : positions.rows) {
    for (const float position : row) {
      const auto integer = static_cast<uint32_t>(static_cast<int32_t>(position));
      EXPECT_EQ(static_cast<float>(integer), position);
      for (int shift = 0; shift < 32; shift += 8) value = (value ^ (integer >> shift & 0xFF)) * 0x100000001B3ull;
    }
  }
  return fmt::format("{:016x}", value);
}

TEST(MropeLayoutsTest, RandomPromptsStandWhereTransformersPutsThem) {
  const auto text = read_small_file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/positions.json", 64 << 20);
  ASSERT_TRUE(text.ok());
  const json prompts = json::parse(*text);
  EXPECT_GE(prompts.size(), 300u);
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    const json& prompt = prompts[k];
    std::vector<PictureRows> pictures;
    for (const json& span : prompt["spans"]) pictures.push_back({span[0], span[1], span[2]});
    const MropePositions seen = mrope_positions(prompt["rows"].get<int32_t>(), pictures);
    ASSERT_EQ(seen.rows.size(), prompt["rows"]) << k;
    EXPECT_EQ(seen.delta, prompt["delta"]) << k;
    EXPECT_EQ(hash_of(seen), prompt["hash"]) << k;
  }
}

}  // namespace
}  // namespace millrace
