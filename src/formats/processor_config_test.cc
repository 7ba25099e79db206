// Processor configurations against what transformers reads from the same text (tests/oracles/formats_processor.py).
#include "formats/processor_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/mapped_file.h"
#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using nlohmann::json;
using test_files::TempDir;

TEST(ProcessorConfig, ReadsWhatTransformersReads) {
  const auto text =
      read_small_file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/processors.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const json rows = json::parse(*text);
  ASSERT_EQ(rows.size(), 9u);
  for (const json& row : rows) {
    SCOPED_TRACE(row["name"].get<std::string>());
    const auto config = parse_image_processor(row["text"].get<std::string>(), "preprocessor_config.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    const json& read = row["read"];
    EXPECT_EQ(config->patch_size, read["patch_size"]);
    EXPECT_EQ(config->temporal_patch_size, read["temporal_patch_size"]);
    EXPECT_EQ(config->merge_size, read["merge_size"]);
    EXPECT_EQ(config->min_pixels, read["min_pixels"]);
    EXPECT_EQ(config->max_pixels, read["max_pixels"]);
    EXPECT_EQ(config->resize, read["resize"]);
    EXPECT_EQ(config->rescale, read["rescale"]);
    EXPECT_EQ(config->normalize, read["normalize"]);
    EXPECT_EQ(config->rescale_factor, read["rescale_factor"]);
    EXPECT_EQ(config->mean, (read["mean"].get<std::array<double, 3>>()));
    EXPECT_EQ(config->std, (read["std"].get<std::array<double, 3>>()));
  }
}

TEST(ProcessorConfig, WhatWouldChangePixelsIsRefusedByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"resample": 2})", "x: resample is 2; wanted 3 (bicubic)"},
      {R"({"do_center_crop": true})", "x: do_center_crop is true; wanted false: this step is not implemented"},
      {R"({"do_something_new": 1})", "x: do_something_new is integer; wanted false: this step is not implemented"},
      {R"({"do_convert_rgb": false})", "x: do_convert_rgb is false; wanted true: images become RGB"},
      {R"({"size": {"height": 224, "width": 224}})",
       "x: size has 'height'; wanted shortest_edge and longest_edge alone"},
      {R"({"image_processor_type": "CLIPImageProcessor"})",
       "x: image_processor_type is 'CLIPImageProcessor'; wanted Qwen2VLImageProcessor"}};
  for (const auto& [text, wanted] : cases) {
    const auto config = parse_image_processor(text, "x");
    EXPECT_EQ(config.status().code(), StatusCode::kUnsupported) << text;
    EXPECT_EQ(config.status().message(), wanted);
  }
  EXPECT_TRUE(parse_image_processor(R"({"do_center_crop": false, "do_pad": null})", "x").ok());
}

TEST(ProcessorConfig, ValuesOutOfRange) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"patch_size": 0})", "x: patch_size is 0; wanted 1 to 256"},
      {R"({"merge_size": 17})", "x: merge_size is 17; wanted 1 to 16"},
      {R"({"size": {"shortest_edge": 4}})", "x: size has no longest_edge; wanted a count of pixels"},
      {R"({"size": 224})", "x: size is of type integer; wanted an object"},
      {R"({"min_pixels": 99, "max_pixels": 98})",
       "x: the least count of pixels is 99, the largest is 98; wanted the first to be no larger"},
      {R"({"max_pixels": 100000000})", "x: max_pixels is 100000000; wanted 1 to 67108864"},
      {R"({"image_std": [0.5, 0, 0.5]})", "x: image_std has 0; wanted 1e-06 to 1000"},
      {R"({"image_mean": [0.5]})", "x: image_mean has 1 numbers; wanted 3"},
      {R"({"image_mean": ["a", 1, 1]})", "x: image_mean has a string; wanted numbers"}};
  for (const auto& [text, wanted] : cases) {
    const auto config = parse_image_processor(text, "x");
    EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(config.status().message(), wanted);
  }
}

TEST(ProcessorConfig, Videos) {
  const auto config = parse_video_processor(
      R"({"size": {"longest_edge": 25165824, "shortest_edge": 4096}, "fps": 4, "video_processor_type": "Qwen3VLVideoProcessor"})",
      "x");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->pixels.min_pixels, 4096);
  EXPECT_EQ(config->pixels.max_pixels, 25165824);
  EXPECT_EQ(config->pixels.patch_size, 16);
  EXPECT_EQ(config->fps, 4);
  EXPECT_EQ(config->max_frames, 768);
  EXPECT_EQ(parse_video_processor(R"({"num_frames": 8})", "x").status().message(),
            "x: num_frames is given for videos; wanted size and fps");
  EXPECT_EQ(parse_video_processor(R"({"min_frames": 9, "max_frames": 8})", "x").status().message(),
            "x: max_frames is 8; wanted 9 to 65536");
}

TEST(ProcessorConfig, Sound) {
  const auto config = parse_feature_extractor(
      R"({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
          "hop_length": 160, "n_fft": 400, "chunk_length": 300, "n_samples": 4800000, "nb_max_frames": 30000,
          "padding_value": 0.0, "dither": 0.0, "return_attention_mask": true})",
      "x");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->mel_bins, 128);
  EXPECT_EQ(config->sampling_rate, 16000);
  EXPECT_EQ(config->n_fft, 400);
  EXPECT_EQ(config->hop_length, 160);
  EXPECT_EQ(parse_feature_extractor("{}", "x")->mel_bins, 80);
  const std::tuple<const char*, StatusCode, const char*> cases[] = {
      {R"({"sampling_rate": 8000})", StatusCode::kUnsupported, "x: sampling_rate is 8000; wanted 16000"},
      {R"({"n_fft": 512})", StatusCode::kUnsupported, "x: n_fft is 512; wanted 400"},
      {R"({"hop_length": 128})", StatusCode::kUnsupported, "x: hop_length is 128; wanted 160"},
      {R"({"dither": 0.5})", StatusCode::kUnsupported,
       "x: dither is 0.5; wanted 0: the same sound has the same features"},
      {R"({"feature_extractor_type": "ClapFeatureExtractor"})", StatusCode::kUnsupported,
       "x: feature_extractor_type is 'ClapFeatureExtractor'; wanted WhisperFeatureExtractor"},
      {R"({"feature_size": 0})", StatusCode::kInvalidArgument, "x: feature_size is 0; wanted 1 to 512"}};
  for (const auto& [text, code, wanted] : cases) {
    const auto refused = parse_feature_extractor(text, "x");
    EXPECT_EQ(refused.status().code(), code) << text;
    EXPECT_EQ(refused.status().message(), wanted);
  }
}

// Of Qwen3-Omni: pictures and sound in one object, or nested as transformers 5 saves them.
TEST(ProcessorConfig, FilesWithSound) {
  const TempDir dir;
  dir.write("preprocessor_config.json", R"({"patch_size": 8})");
  EXPECT_FALSE(read_processor_config(dir.path())->sound.has_value());
  dir.write("preprocessor_config.json", R"({"patch_size": 8, "feature_size": 128, "image_mean": [0.5, 0.5, 0.5]})");
  const auto older = read_processor_config(dir.path());
  ASSERT_TRUE(older.ok()) << older.status().to_string();
  EXPECT_EQ(older->image.patch_size, 8);
  EXPECT_EQ(older->sound->mel_bins, 128);
  dir.write("processor_config.json",
            R"({"feature_extractor": {"feature_size": 64}, "image_processor": {"patch_size": 9},
                "video_processor": {"video_processor_type": "Qwen2VLVideoProcessor", "max_pixels": 5}})");
  const auto newer = read_processor_config(dir.path());
  ASSERT_TRUE(newer.ok()) << newer.status().to_string();
  EXPECT_EQ(newer->image.patch_size, 9);
  EXPECT_EQ(newer->sound->mel_bins, 64);
  EXPECT_FALSE(newer->video.has_value());
  dir.write("processor_config.json", R"({"feature_extractor": {"hop_length": 161}})");
  EXPECT_EQ(read_processor_config(dir.path()).status().message(),
            dir.path() + "/processor_config.json: feature_extractor: hop_length is 161; wanted 160");
}

TEST(ProcessorConfig, FilesOfADirectory) {
  const TempDir dir;
  EXPECT_EQ(read_processor_config(dir.path()).status().code(), StatusCode::kNotFound);
  dir.write("preprocessor_config.json", R"({"patch_size": 8})");
  const auto older = read_processor_config(dir.path());
  ASSERT_TRUE(older.ok()) << older.status().to_string();
  EXPECT_EQ(older->image.patch_size, 8);
  EXPECT_FALSE(older->video.has_value());
  dir.write("video_preprocessor_config.json", R"({"patch_size": 9})");
  EXPECT_EQ(read_processor_config(dir.path())->video->pixels.patch_size, 9);
  dir.write("processor_config.json",
            R"({"image_processor": {"patch_size": 10}, "processor_class": "Qwen3VLProcessor"})");
  EXPECT_EQ(read_processor_config(dir.path())->image.patch_size, 10);
  EXPECT_EQ(read_processor_config(dir.path())->video->pixels.patch_size, 9);
  dir.write("processor_config.json", R"({"image_processor": {}, "video_processor": {"resample": 1}})");
  EXPECT_EQ(read_processor_config(dir.path()).status().message(),
            dir.path() + "/processor_config.json: video_processor: resample is 1; wanted 3 (bicubic)");
}

}  // namespace
}  // namespace millrace
