// Videos with seeded damage, through ffprobe and ffmpeg in their sandbox: groups of frames that fit each other, or an
// error. A few, since each starts two processes; the decoders themselves are theirs, what is read from them is ours.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "media/frame_pack.h"
#include "media/testing/mutants.h"
#include "stages/media/prompt_video.h"

namespace millrace {
namespace {

constexpr int kMutantsOfAFile = 12;

Bytes read_file(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_SOURCE_DIR "/tests/golden/media/video/") + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void expect_groups(const std::vector<PromptItem>& items, const std::string& name) {
  ASSERT_FALSE(items.empty()) << name;
  for (const PromptItem& item : items) {
    const std::string& bytes = item.media.bytes.bytes;
    const auto frames = unpack_frames({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    ASSERT_TRUE(frames.ok()) << name;
    EXPECT_EQ(frames->size(), 2u) << name;
    EXPECT_EQ((*frames)[0].height(), item.media.grid_h * 16) << name;
    EXPECT_EQ((*frames)[0].width(), item.media.grid_w * 16) << name;
  }
}

TEST(VideoMutation, AnyBytesGiveGroupsOfFramesOrAnError) {
  if (!find_program("ffmpeg", "ffmpeg").ok()) GTEST_SKIP() << "ffmpeg is not installed";
  const VideoFacts facts{.patches = {.min_pixels = 4 * 32 * 32, .max_pixels = 64 * 64 * 32}};
  const VideoLimits limits{.frames = 1'000, .pixels = 1 << 20, .decode_seconds = 60};
  int decoded = 0, refused = 0;
  for (const char* file : {"rising.mp4", "rising.webm", "rising.gif"}) {
    const Bytes bytes = read_file(file);
    ASSERT_FALSE(bytes.empty());
    Draw draw{99};
    for (int i = 0; i < kMutantsOfAFile; ++i) {
      const std::string name = fmt::format("{} mutant {}", file, i);
      const Bytes mutant = i == 0 ? bytes : mutant_of(bytes, draw);
      const auto items = read_video({mutant.begin(), mutant.end()}, facts, limits, [] { return false; });
      if (items.ok()) {
        expect_groups(*items, name);
      } else {
        EXPECT_EQ(items.status().code(), StatusCode::kInvalidArgument) << name << items.status().to_string();
      }
      ++(items.ok() ? decoded : refused);
    }
  }
  EXPECT_GT(decoded, 3);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace millrace
