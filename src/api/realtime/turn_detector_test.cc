// Where a turn begins and ends, over sound that is made here: silence, noise, tones, clicks.
#include "api/realtime/turn_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "api/realtime/input_audio.h"
#include "api/realtime/limits.h"

namespace millrace::api {
namespace {

constexpr int kRate = kRealtimeRate;
constexpr int64_t kFrame = kRate / 50;  // samples of 20 ms

std::vector<int16_t> silence(int64_t ms) { return std::vector<int16_t>(static_cast<std::size_t>(ms * kRate / 1000)); }

std::vector<int16_t> tone(int64_t ms, double level, int offset = 0) {
  std::vector<int16_t> out = silence(ms);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double wave = std::sin(0.11 * static_cast<double>(i)) * level * std::sqrt(2.0);
    out[i] = static_cast<int16_t>(std::lround(wave * 32767) + offset);
  }
  return out;
}

std::vector<int16_t> operator+(std::vector<int16_t> a, const std::vector<int16_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string bytes_of(const std::vector<int16_t>& samples) {
  return {reinterpret_cast<const char*>(samples.data()), samples.size() * 2};
}

// The changes, each as its frame, negative where the speech ends.
std::vector<int64_t> changes(const std::vector<int16_t>& sound, std::size_t chunk, double threshold = 0.5,
                             int64_t silence_ms = 200) {
  TurnDetector detector(kRate, threshold, silence_ms);
  std::vector<int64_t> out;
  for (std::size_t at = 0; at < sound.size(); at += chunk) {
    const auto part = std::span(sound).subspan(at, std::min(chunk, sound.size() - at));
    for (const TurnDetector::Change& change : detector.push(part)) {
      EXPECT_EQ(change.sample % kFrame, 0);
      out.push_back(change.speaks ? change.sample / kFrame : -change.sample / kFrame);
    }
  }
  return out;
}

TEST(TurnDetectorTest, ATurnBeginsAtItsFirstLoudFrameAndEndsBehindItsSilence) {
  const auto sound = silence(400) + tone(600, 0.1) + silence(500);
  EXPECT_EQ(changes(sound, sound.size()), (std::vector<int64_t>{20, -60}));
}

TEST(TurnDetectorTest, TheResultDoesNotDependOnHowTheSamplesCome) {
  const auto sound = silence(130) + tone(610, 0.1) + silence(410) + tone(300, 0.2) + silence(270);
  const auto wanted = changes(sound, sound.size());
  EXPECT_EQ(wanted.size(), 4u);
  for (std::size_t chunk : {1, 7, 479, 480, 481, 4800}) EXPECT_EQ(changes(sound, chunk), wanted) << chunk;
}

TEST(TurnDetectorTest, AShortPauseDoesNotEndATurn) {
  const auto sound = tone(400, 0.1) + silence(180) + tone(400, 0.1) + silence(300);
  EXPECT_EQ(changes(sound, sound.size()).size(), 2u);
  EXPECT_EQ(changes(sound, sound.size(), 0.5, 100).size(), 4u) << "with a shorter silence it does";
}

TEST(TurnDetectorTest, NeitherClicksNorNoiseNorAnOffsetBeginATurn) {
  auto clicks = silence(2000);
  for (std::size_t at = 1000; at < clicks.size(); at += 4000) clicks[at] = 32767;
  EXPECT_TRUE(changes(clicks, clicks.size()).empty());
  std::mt19937 random(7);
  auto noise = silence(2000);
  for (int16_t& sample : noise) sample = static_cast<int16_t>(static_cast<int>(random() % 200) - 100);
  EXPECT_TRUE(changes(noise, noise.size()).empty());
  EXPECT_TRUE(changes(std::vector<int16_t>(48000, 9000), 48000).empty());
}

TEST(TurnDetectorTest, TheThresholdIsALevel) {
  for (double threshold : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double level = loud_level(threshold);
    EXPECT_TRUE(changes(tone(500, 0.9 * level), 480, threshold).empty()) << threshold;
    EXPECT_EQ(changes(tone(500, 1.1 * level), 480, threshold).size(), 1u) << threshold;
  }
  EXPECT_NEAR(loud_level(0.5), 0.01, 1e-9);
  EXPECT_NEAR(loud_level(1) / loud_level(0), 100, 1e-6);
}

class InputAudioTest : public ::testing::Test {
 protected:
  std::vector<InputAudio::Event> add(const std::vector<int16_t>& samples) {
    std::vector<InputAudio::Event> events;
    const Status status = input_.append(bytes_of(samples), events);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return events;
  }
  static constexpr std::size_t kHeader = 44;

  InputAudio input_;
};

TEST_F(InputAudioTest, WhatWasAppendedIsWhatIsCommitted) {
  const auto sound = tone(100, 0.3) + tone(50, 0.9);
  for (std::size_t at = 0; at < sound.size(); at += 500) {
    const auto end = std::min(at + 500, sound.size());
    add({sound.begin() + static_cast<std::ptrdiff_t>(at), sound.begin() + static_cast<std::ptrdiff_t>(end)});
  }
  EXPECT_EQ(input_.bytes(), sound.size() * 2);
  const auto wav = input_.commit();
  ASSERT_TRUE(wav.ok()) << wav.status().to_string();
  EXPECT_EQ(wav->substr(kHeader), bytes_of(sound));
  EXPECT_EQ(input_.bytes(), 0u);
}

TEST_F(InputAudioTest, WhatCannotBeATurnIsRefused) {
  EXPECT_EQ(input_.commit().status().message(), "the buffer has 0 ms of audio; wanted at least 100 ms");
  add(tone(99, 0.5));
  EXPECT_FALSE(input_.commit().ok());
  add(tone(1, 0.5));
  EXPECT_TRUE(input_.commit().ok());
  std::vector<InputAudio::Event> events;
  EXPECT_EQ(input_.append("abc", events).message(), "audio has 3 bytes; wanted an even number: samples of 16 bits");
}

TEST_F(InputAudioTest, ItHoldsNoMoreThanItsLimit) {
  for (int64_t second = 0; second < kMaxInputSeconds; ++second) add(silence(1000));
  std::vector<InputAudio::Event> events;
  const Status status = input_.append(bytes_of({1}), events);
  EXPECT_EQ(status.code(), StatusCode::kTooLarge) << status.to_string();
  EXPECT_EQ(input_.bytes(), static_cast<std::size_t>(kMaxInputSeconds * kRate * 2));
  input_.clear();
  EXPECT_EQ(input_.bytes(), 0u);
}

TEST_F(InputAudioTest, ATurnHasItsPaddingAndASilentLineHoldsNothingThatGrows) {
  input_.detect(TurnDetection{.prefix_padding_ms = 300, .silence_duration_ms = 200});
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(add(silence(50)).empty());
    EXPECT_LE(input_.bytes(), 2u * kRate / 2);
  }
  const auto begun = add(tone(500, 0.2));
  ASSERT_EQ(begun.size(), 1u);
  EXPECT_TRUE(begun[0].speaks);
  EXPECT_EQ(begun[0].ms, 10'000 - 300);
  const auto ended = add(silence(1000));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_FALSE(ended[0].speaks);
  EXPECT_EQ(ended[0].ms, 10'700);
  EXPECT_EQ(ended[0].wav.size(), kHeader + (300 + 500 + 200) * kRate / 1000 * 2);
  EXPECT_LE(input_.bytes(), 2u * kRate / 2);
}

TEST_F(InputAudioTest, OneAppendMayHoldSeveralTurns) {
  input_.detect(TurnDetection{.prefix_padding_ms = 0, .silence_duration_ms = 100});
  const auto events = add(tone(300, 0.2) + silence(300) + tone(200, 0.2) + silence(300));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].wav.size(), kHeader + 400 * kRate / 1000 * 2);
  EXPECT_EQ(events[3].wav.size(), kHeader + 300 * kRate / 1000 * 2);
  EXPECT_EQ(events[2].ms, 600);
}

}  // namespace
}  // namespace millrace::api
