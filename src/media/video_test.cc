// Videos: the frames that are chosen and their times against transformers 5.12, their size, what ffmpeg decodes, and
// what is refused.
#include "media/video.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "media/frame_pack.h"
#include "media/ppm_stream.h"
#include "media/testing/golden.h"
#include "media/video_plan.h"

namespace millrace {
namespace {

const std::string kGolden = MILLRACE_SOURCE_DIR "/tests/golden/media/video/";

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

const Json& golden() {
  static const Json root = *parse_json(read_text(kGolden + "video.json"));
  return root;
}

TEST(VideoPlan, FramesTimesAndSizesOfTransformers) {
  ASSERT_GE(golden()["samples"].size(), 100u);
  for (const Json& one : golden()["samples"]) {
    const FrameSampling sampling{.fps = one["target"], .min_frames = one["min"], .max_frames = one["max"]};
    const std::vector<int64_t> indices = sample_frames(one["frames"], one["fps"], sampling);
    ASSERT_EQ(indices, one["indices"].get<std::vector<int64_t>>()) << one["frames"] << " at " << one["fps"];
    EXPECT_EQ(group_times(indices, one["fps"], 2), one["times"].get<std::vector<double>>());
  }
  ASSERT_GE(golden()["sizes"].size(), 100u);
  for (const Json& one : golden()["sizes"]) {
    const PatchConfig config{.patch_size = 16, .min_pixels = one["least"], .max_pixels = one["most"]};
    const auto size = video_size(one["frames"], {one["width"], one["height"]}, config);
    if (one["size"].is_null()) {
      EXPECT_FALSE(size.ok()) << one;
      continue;
    }
    ASSERT_TRUE(size.ok()) << size.status().message();
    EXPECT_EQ(size->height, one["size"][0]) << one;
    EXPECT_EQ(size->width, one["size"][1]) << one;
  }
}

TEST(VideoPlan, AllFramesWithoutSampling) {
  EXPECT_EQ(sample_frames(3, 25, {.sample = false}), (std::vector<int64_t>{0, 1, 2}));
}

TEST(PpmStream, PicturesComeInAnyChunks) {
  const std::string two = "P6\n2 1\n255\nabcdefP6\n1 2\n255\nghijkl";
  for (std::size_t chunk = 1; chunk <= two.size(); ++chunk) {
    PpmStream stream(2);
    std::string seen;
    for (std::size_t at = 0; at < two.size(); at += chunk) {
      const auto part = bytes_of(two.substr(at, chunk));
      ASSERT_TRUE(stream
                      .add(part,
                           [&](Image image) {
                             seen += fmt::format("{}x{} {} ", image.width(), image.height(),
                                                 std::string(image.bytes().begin(), image.bytes().end()));
                             return ok_status();
                           })
                      .ok());
    }
    EXPECT_EQ(seen, "2x1 abcdef 1x2 ghijkl ");
  }
  for (const char* bad : {"P5\n1 1\n255\n", "P6\n3 1\n255\n", "P6\n0 1\n255\n", "P6\n1 1\n65535\n", "\n\n\n"}) {
    PpmStream stream(2);
    EXPECT_FALSE(stream.add(bytes_of(bad), [](Image) { return ok_status(); }).ok()) << bad;
  }
  PpmStream stream(2);
  EXPECT_FALSE(stream.add(bytes_of(std::string(100, 'x')), [](Image) { return ok_status(); }).ok());
}

TEST(FramePack, WhatWasPackedComesBack) {
  std::vector<Image> frames;
  for (int i = 0; i < 2; ++i) {
    Image& image = frames.emplace_back(3, 2);
    for (std::size_t k = 0; k < image.size_bytes(); ++k)
      image.row(0)[k] = static_cast<uint8_t>(100 * i + static_cast<int>(k));
  }
  std::string packed = pack_frames(frames);
  EXPECT_FALSE(read_image_header(bytes_of(packed)).ok()) << "no picture of a client is a pack";
  const auto back = unpack_frames(bytes_of(packed));
  ASSERT_TRUE(back.ok());
  ASSERT_EQ(back->size(), 2u);
  EXPECT_TRUE(std::ranges::equal((*back)[1].bytes(), frames[1].bytes()));
  EXPECT_FALSE(unpack_frames(bytes_of(packed.substr(1))).ok());
  EXPECT_FALSE(unpack_frames(bytes_of(packed + "x")).ok());
  packed[8] = 3;
  EXPECT_FALSE(unpack_frames(bytes_of(packed)).ok());
  EXPECT_FALSE(unpack_frames({}).ok());
}

TEST(VideoInfoTest, RatesAndLimits) {
  const auto info = [](const std::string& stream) { return parse_video_info(R"({"streams":[{)" + stream + "}]}", {}); };
  const std::string size = R"("width":64,"height":48,"nb_read_frames":"9")";
  EXPECT_EQ(info(size + R"(,"avg_frame_rate":"30000/1001")")->fps, 30000.0 / 1001);
  EXPECT_EQ(info(size + R"(,"avg_frame_rate":"0/0","r_frame_rate":"25/1")")->fps, 25);
  EXPECT_EQ(info(size + R"(,"avg_frame_rate":"0/0")")->fps, 24);
  EXPECT_EQ(info(size)->frames, 9);
  for (const char* bad :
       {R"("width":64,"height":48)", R"("width":64,"height":48,"nb_read_frames":"0")",
        R"("width":0,"height":48,"nb_read_frames":"9")", R"("width":64,"height":48,"nb_read_frames":"100001")",
        R"("width":5000,"height":5000,"nb_read_frames":"9")"}) {
    EXPECT_FALSE(info(bad).ok()) << bad;
  }
  for (const char* bad : {"", "{}", "[]", R"({"streams":[]})", R"({"streams":[7]})"}) {
    EXPECT_FALSE(parse_video_info(bad, {}).ok()) << bad;
  }
}

const Cancelled kNever = [] { return false; };

TEST(VideoInfoTest, EachLimitIsNamed) {
  const std::string text = R"({"streams":[{"width":64,"height":48,"nb_read_frames":"90","avg_frame_rate":"30/1"}]})";
  const VideoLimits fits{.frames = 90, .pixels = 64 * 48, .seconds = 3};
  EXPECT_TRUE(parse_video_info(text, fits).ok());
  VideoLimits limits = fits;
  limits.frames = 89;
  EXPECT_EQ(parse_video_info(text, limits).status().message(),
            "it has 90 frames; wanted at most 89 (--video-max-frames)");
  limits = fits;
  limits.pixels = 64 * 48 - 1;
  EXPECT_EQ(parse_video_info(text, limits).status().message(),
            "its frames have 64 x 48 pixels; wanted at most 3071 (--video-max-pixels)");
  limits = fits;
  limits.seconds = 2;
  EXPECT_EQ(parse_video_info(text, limits).status().message(),
            "it plays for 3 seconds; wanted at most 2 (--video-max-seconds)");
  const std::vector<uint8_t> large((1 << 20) + 1);
  const Status status = probe_video(large, {.mib = 1}, kNever).status();
  EXPECT_EQ(status.code(), StatusCode::kTooLarge);
  EXPECT_EQ(status.message(), "it has 1048577 bytes; wanted at most 1 MiB (--video-max-mib)");
}

class VideoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!find_program("ffmpeg", "ffmpeg").ok()) GTEST_SKIP() << "ffmpeg is not installed";
  }
};

// The frames of the golden video are plain colours, so a lossy codec keeps them apart: red rises, blue falls.
TEST_F(VideoTest, ChosenFramesOfAFile) {
  for (const Json& one : golden()["files"]) {
    const std::vector<uint8_t> file = bytes_of(read_text(kGolden + one["name"].get<std::string>()));
    const auto info = probe_video(file, {}, kNever);
    ASSERT_TRUE(info.ok()) << info.status().message();
    EXPECT_EQ(info->frames, one["frames"]);
    EXPECT_NEAR(info->fps, one["fps"].get<double>(), 1e-6);
    const std::vector<int64_t> indices = {0, 2, 5, info->frames - 1};
    std::vector<int> reds;
    const Status status = decode_frames(file, indices, {}, kNever, [&](Image image) {
      EXPECT_EQ(image.width(), one["width"]);
      EXPECT_EQ(image.height(), one["height"]);
      reds.push_back(image.row(image.height() / 2)[image.width() / 2 * 3]);
      return ok_status();
    });
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(reds.size(), 4u);
    for (std::size_t i = 0; i < reds.size(); ++i) {
      EXPECT_NEAR(reds[i], 20 * static_cast<int>(indices[i]) + 20, 8) << one["name"] << " frame " << indices[i];
    }
  }
}

TEST_F(VideoTest, FramesOverTheLimitAreRefused) {
  const std::vector<uint8_t> file = bytes_of(read_text(kGolden + "rising.mp4"));
  const auto info = probe_video(file, {.pixels = 100}, kNever);
  EXPECT_NE(info.status().message().find("wanted at most 100 (--video-max-pixels)"), std::string::npos)
      << info.status().message();
}

TEST_F(VideoTest, WhatIsNoVideoIsRefused) {
  std::vector<std::string> files = {"", "not a video", "#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
                                    "ffconcat version 1.0\nfile '/etc/passwd'\n",
                                    read_text(kGolden + "rising.mp4").substr(0, 300)};
  for (const std::string& file : files) {
    const auto info = probe_video(bytes_of(file), {}, kNever);
    ASSERT_FALSE(info.ok()) << file;
    EXPECT_EQ(info.status().code(), StatusCode::kInvalidArgument) << info.status().message();
  }
}

}  // namespace
}  // namespace millrace
