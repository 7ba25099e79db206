// The messages between a stage that generates and one that encodes media: the bytes of an independent writer
// (tests/oracles/wire_frames.py), and what is refused.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "wire/codec.h"
#include "wire/messages.h"
#include "wire/testing/frames.h"
#include "wire/testing/samples.h"

namespace millrace::wire {
namespace {

PromptMedia sample_picture() {
  PromptMedia media{.begin = 3, .rows = 4, .grid_t = 1, .grid_h = 4, .grid_w = 4, .field = "messages[0].content[1]"};
  for (char byte = 0; byte < 32; ++byte) media.digest.bytes.push_back(byte);
  media.bytes.bytes = "GIF89a";
  return media;
}

EncodeMedia sample_wanted() {
  return {.job = 7,
          .reply_to = "ipc:///run/x",
          .facts = {0xFEDCBA9876543210u, "avx512"},
          .media = sample_picture(),
          .traceparent = testing::kTraceparent};
}

FeaturesPart sample_part() {
  const float values[] = {1.0f, -0.5f, 0.0f, 3.25f};
  FeaturesPart part{.job = 7, .rows = 2, .sets = 1, .hidden_size = 2, .checksum = 0x0123456789ABCDEFu};
  part.bytes.bytes.assign(reinterpret_cast<const char*>(values), sizeof values);
  return part;
}

const Failure kRangeGone{StatusCode::kUnavailable, "range 2 is gone"};

const std::vector<std::pair<std::string, Message>> kMediaSamples = {
    {"encode_media", sample_wanted()},
    {"features_part", sample_part()},
    {"encode_end", EncodeEnd{7, "ipc:///run/x", std::nullopt}},
    {"encode_end_failed", EncodeEnd{7, "", kRangeGone}}};

TEST(MediaCodec, FramesEqualTheOraclesBytesAndComeBack) { testing::expect_golden_frames(kMediaSamples); }

TEST(MediaCodec, TruncatedAndMutatedFramesAreRefusedOrAreMessages) {
  std::mt19937_64 random(12);
  for (const auto& [name, message] : kMediaSamples) {
    const std::string frame = testing::golden_frame(name);
    testing::expect_refused_or_messages(frame, name, random, 2000);
  }
}

TEST(MediaCodec, NumbersThatDisagreeAreRefused) {
  const std::vector<std::pair<std::function<void(FeaturesPart&)>, std::string>> cases = {
      {[](FeaturesPart& p) { p.rows = 0; }, "features of 1 x 0 x 2"},
      {[](FeaturesPart& p) { p.sets = 65; }, "65 sets"},
      {[](FeaturesPart& p) { p.first = 1; }, "16 bytes of features from value 1 on; wanted f32 values inside [0, 4)"},
      {[](FeaturesPart& p) { p.first = -1; }, "from value -1 on"},
      {[](FeaturesPart& p) { p.bytes.bytes.pop_back(); }, "15 bytes of features"},
      {[](FeaturesPart& p) { p.bytes.bytes.clear(); }, "0 bytes of features"},
  };
  for (const auto& [change, part] : cases) {
    FeaturesPart message = sample_part();
    change(message);
    const auto frame = encode(Message(message));
    ASSERT_FALSE(frame.ok()) << part;
    EXPECT_NE(frame.status().message().find(part), std::string::npos) << frame.status().message();
  }
  EncodeMedia wanted = sample_wanted();
  wanted.reply_to.clear();
  EXPECT_FALSE(encode(Message(wanted)).ok());
  wanted = sample_wanted();
  wanted.media.bytes.bytes.clear();
  EXPECT_FALSE(encode(Message(wanted)).ok());
  wanted = sample_wanted();
  wanted.traceparent.back() = '0';
  EXPECT_FALSE(encode(Message(wanted)).ok());
}

TEST(MediaCodec, TheChecksumCoversEachField) {
  const uint64_t complete = features_checksum(sample_part());
  const std::vector<std::function<void(FeaturesPart&)>> changes = {
      [](FeaturesPart& p) { ++p.job; },   [](FeaturesPart& p) { ++p.rows; },
      [](FeaturesPart& p) { ++p.sets; },  [](FeaturesPart& p) { ++p.hidden_size; },
      [](FeaturesPart& p) { ++p.first; }, [](FeaturesPart& p) { p.bytes.bytes[3] ^= 1; }};
  for (const auto& change : changes) {
    FeaturesPart part = sample_part();
    change(part);
    EXPECT_NE(features_checksum(part), complete);
  }
}

}  // namespace
}  // namespace millrace::wire
