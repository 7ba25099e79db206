#include "media/resize.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "media/resize_passes.h"
#include "media/testing/golden.h"

namespace millrace {
namespace {

TEST(Resize, TwoThousandSizesHaveTheBitsOfPillow) {
  std::istringstream lines(read_text(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/media/resize.txt"));
  int w, h, new_w, new_h;
  uint32_t crc;
  uint64_t seed = 0;
  for (; lines >> w >> h >> new_w >> new_h >> crc; ++seed) {
    const Image out = resize_bicubic(noise_image(w, h, seed), new_w, new_h);
    ASSERT_EQ(out.width(), new_w);
    ASSERT_EQ(out.height(), new_h);
    ASSERT_EQ(crc32(out.bytes()), crc) << w << " x " << h << " to " << new_w << " x " << new_h << ", seed " << seed;
  }
  EXPECT_EQ(seed, 2000u);
}

// The processor that runs the test above has one of the two forms.
TEST(Resize, PlainAndAvx2PassesAreEqual) {
  if (!resize_passes::has_avx2()) GTEST_SKIP() << "the processor has no AVX2";
  uint64_t seed = 0;
  for (const auto& [in, out] :
       {std::pair{1, 9}, {9, 1}, {50, 49}, {50, 51}, {7, 333}, {999, 20}, {400, 400}, {5000, 3}}) {
    const resize_passes::Taps taps = resize_passes::make_taps(in, out);
    const Image image = noise_image(in, in > 1000 ? 4 : in, ++seed);
    std::vector<uint8_t> row(image.row(0), image.row(0) + image.row_bytes());
    row.resize(row.size() + resize_passes::kRowSlack, 0xAA);
    std::vector<uint8_t> plain(static_cast<std::size_t>(out) * 3), wide(plain.size());
    resize_passes::horizontal_plain(taps, row.data(), plain.data());
    resize_passes::horizontal_avx2(taps, row.data(), wide.data());
    EXPECT_EQ(plain, wide) << in << " to " << out;
    if (image.height() != in) continue;
    plain.resize(image.row_bytes());
    wide.resize(image.row_bytes());
    for (int y = 0; y < out; ++y) {
      resize_passes::vertical_plain(taps, y, image.row(0), image.row_bytes(), image.row_bytes(), plain.data());
      resize_passes::vertical_avx2(taps, y, image.row(0), image.row_bytes(), image.row_bytes(), wide.data());
      ASSERT_EQ(plain, wide) << in << " to " << out << ", row " << y;
    }
  }
}

}  // namespace
}  // namespace millrace
