// Positions of random prompts with sounds and still pictures against transformers' get_rope_index of Qwen3-Omni
// (tests/oracles/omni_positions.py): the rows of a sound stand as those of text do.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/mapped_file.h"
#include "models/vision/mrope.h"

namespace millrace {
namespace {

using nlohmann::json;

// FNV-1a, 64 bits, of the positions as little-endian int32.
std::string positions_hash(const MropePositions& positions) {
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

TEST(OmniPositions, RandomPromptsStandWhereTransformersPutsThem) {
  const auto text = read_small_file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/positions.json", 64 << 20);
  ASSERT_TRUE(text.ok());
  const json prompts = json::parse(*text);
  EXPECT_GE(prompts.size(), 400u);
  int with_both = 0;
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    const json& prompt = prompts[k];
    with_both += !prompt["pictures"].empty() && !prompt["sounds"].empty();
    std::vector<PictureRows> pictures;
    for (const json& span : prompt["pictures"]) pictures.push_back({span[0], span[1], span[2]});
    const MropePositions seen = mrope_positions(prompt["rows"].get<int32_t>(), pictures);
    ASSERT_EQ(seen.rows.size(), prompt["rows"]) << k;
    EXPECT_EQ(seen.delta, prompt["delta"]) << k;
    EXPECT_EQ(positions_hash(seen), prompt["hash"]) << k;
  }
  EXPECT_GE(with_both, 100);
}

}  // namespace
}  // namespace millrace
