#include "media/log_mel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "base/json.h"
#include "media/audio.h"
#include "media/data_url.h"
#include "media/real_dft.h"
#include "media/testing/golden.h"
#include "media/testing/sound.h"

namespace millrace {
namespace {

// transformers computes in f32; see log_mel.h. Means over a row or a column differ less.
constexpr double kMelTolerance = 5e-5;
constexpr double kMeanTolerance = 1e-5;

const std::string kMelGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/audio/";

float noise_at(uint64_t seed, uint64_t i) {
  return static_cast<float>(mix_bits((seed << 32) + i) >> 56) / 128.0f - 1.0f;
}

// signal_of() of tests/oracles/audio_mel.py.
std::vector<float> signal_of(const Json& one) {
  const auto kind = one["kind"].get<std::string>();
  const auto count = one["count"].get<std::size_t>();
  const auto value = one["value"].get<double>();
  const auto scale = one["scale"].get<float>();
  std::vector<float> samples(count);
  if (kind == "speech") samples = decode_audio(read_bytes(kMelGolden + "speech.flac")).value();
  samples.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    float& sample = samples[i];
    if (kind == "noise") sample = noise_at(static_cast<uint64_t>(value), i);
    if (kind == "constant") sample = static_cast<float>(value);
    if (kind == "click") sample = i == static_cast<std::size_t>(value) ? 1 : 0;
    if (kind == "late noise") sample = i < static_cast<std::size_t>(value) ? 0 : noise_at(0, i);
    if (kind == "tone") {
      const double sine = std::sin(2 * std::numbers::pi * value * static_cast<double>(i) / 16000);
      sample = static_cast<float>(std::nearbyint(16384 * sine)) / 32768;
    }
    sample *= scale;
  }
  return samples;
}

MelConfig config_of(const Json& one) {
  const Json& config = one["config"];
  return {config.value("bins", 128), config.value("n_fft", 400), config.value("hop", 160), config.value("rate", 16000)};
}

std::vector<float> floats_of(const std::string& base64) {
  const auto bytes = decode_base64(base64, 1 << 20).value();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void expect_means(const std::vector<float>& values, const Json& one, std::size_t bins, const std::string& name) {
  const std::size_t frames = values.size() / bins;
  std::vector<double> frame_means(frames);
  std::vector<double> bin_means(bins);
  for (std::size_t i = 0; i < values.size(); ++i) {
    frame_means[i / bins] += values[i] / static_cast<double>(bins);
    bin_means[i % bins] += values[i] / static_cast<double>(frames);
  }
  ASSERT_EQ(one["frame_means"].size(), frames) << name;
  ASSERT_EQ(one["bin_means"].size(), bins) << name;
  const double single = frames < 8 ? kMelTolerance : kMeanTolerance;
  for (std::size_t i = 0; i < frames; ++i) {
    EXPECT_NEAR(frame_means[i], one["frame_means"][i].get<double>(), kMeanTolerance) << name << ", frame " << i;
  }
  for (std::size_t i = 0; i < bins; ++i) {
    EXPECT_NEAR(bin_means[i], one["bin_means"][i].get<double>(), single) << name << ", bin " << i;
  }
}

TEST(LogMel, ValuesOfTransformers) {
  const auto root = parse_json(read_text(kMelGolden + "mel.json"));
  ASSERT_TRUE(root.ok());
  ASSERT_EQ((*root)["cases"].size(), 42u);
  double greatest = 0;
  for (const Json& one : (*root)["cases"]) {
    const auto samples = signal_of(one);
    const MelConfig config = config_of(one);
    const auto name =
        fmt::format("{} of {} samples, {}", one["kind"].get<std::string>(), samples.size(), one["value"].get<double>());
    EXPECT_EQ(mel_frames(static_cast<int64_t>(samples.size()), config), one["frames"].get<int64_t>()) << name;
    const auto values = log_mel(samples, config);
    ASSERT_TRUE(values.ok()) << name << ": " << values.status().to_string();
    const auto bins = static_cast<std::size_t>(config.bins);
    ASSERT_EQ(values->size(), one["frames"].get<std::size_t>() * bins) << name;
    const auto wanted = floats_of(one["values"].get<std::string>());
    ASSERT_EQ(wanted.size(), one["rows"].size() * bins) << name;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const auto row = one["rows"][i / bins].get<std::size_t>();
      const double difference = std::abs((*values)[row * bins + i % bins] - wanted[i]);
      greatest = std::max(greatest, difference);
      ASSERT_LE(difference, kMelTolerance) << name << ", row " << row << ", bin " << i % bins;
    }
    expect_means(*values, one, bins, name);
  }
  RecordProperty("greatest_difference", fmt::format("{:.3g}", greatest));
  std::printf("greatest difference %.3g\n", greatest);
}

TEST(LogMel, LengthsThatTransformersRefuses) {
  const auto root = parse_json(read_text(kMelGolden + "mel.json"));
  ASSERT_TRUE(root.ok());
  ASSERT_EQ((*root)["refused"].size(), 8u);
  for (const Json& count : (*root)["refused"]) {
    const std::vector<float> samples(count.get<std::size_t>(), 0.5f);
    EXPECT_EQ(mel_frames(static_cast<int64_t>(samples.size()), {}), 0);
    const auto values = log_mel(samples, {});
    ASSERT_FALSE(values.ok());
    EXPECT_EQ(values.status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(values.status().message(),
              fmt::format("the audio has {} samples; wanted at least 201 for a spectrogram", samples.size()));
  }
  EXPECT_EQ(mel_frames(201, {}), 1);
  EXPECT_EQ(mel_frames(16000ll * 3600, {}), 360000);
}

TEST(LogMel, FramesAfterTheSameSamplesAreEqual) {
  std::vector<float> samples;
  for (uint64_t i = 0; i < 16000; ++i) samples.push_back(noise_at(3, i));
  const auto all = log_mel(samples, {}).value();
  // Far from the end a frame depends on its 400 samples alone, as long as the loudest bin is far less than 80 dB above.
  const auto part = log_mel(std::span(samples).first(8000), {}).value();
  EXPECT_EQ(std::memcmp(all.data(), part.data(), 48 * 128 * sizeof(float)), 0);
  EXPECT_EQ(log_mel(samples, {}).value(), all);
}

TEST(LogMel, RefusesConfigurations) {
  const std::vector<float> samples(4000, 0.1f);
  const auto message = [&](MelConfig config, StatusCode code = StatusCode::kInvalidArgument) {
    const auto values = log_mel(samples, config);
    EXPECT_FALSE(values.ok());
    EXPECT_EQ(values.status().code(), code);
    return values.status().message();
  };
  EXPECT_EQ(message({.bins = 0}), "feature_size is 0; wanted 1 to 512");
  EXPECT_EQ(message({.bins = 513}), "feature_size is 513; wanted 1 to 512");
  EXPECT_EQ(message({.n_fft = -400}), "n_fft is -400; wanted 2 to 8192");
  EXPECT_EQ(message({.n_fft = 401}, StatusCode::kUnsupported),
            "n_fft is 401; wanted an even number without prime factors over 5");
  EXPECT_EQ(message({.hop = 0}), "hop_length is 0; wanted 1 to n_fft, which is 400");
  EXPECT_EQ(message({.hop = 401}), "hop_length is 401; wanted 1 to n_fft, which is 400");
  EXPECT_EQ(message({.rate = 8000}), "sampling_rate is 8000; wanted at least 16000");
}

TEST(LogMel, RefusesSamplesThatAreNoNumbers) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> samples(4000, 0.1f);
    samples[3999] = value;
    EXPECT_EQ(log_mel(samples, {}).status().message(), fmt::format("sample 3999 is {}; wanted a finite number", value));
  }
}

// Against the definition, in long double.
TEST(RealDft, PowersOfTheDefinition) {
  for (const int size : {2, 4, 6, 8, 10, 12, 18, 24, 30, 50, 64, 96, 250, 400, 480, 512, 810}) {
    std::vector<double> frame;
    for (int i = 0; i < size; ++i) frame.push_back(noise_at(static_cast<uint64_t>(size), static_cast<uint64_t>(i)));
    std::vector<double> powers(static_cast<std::size_t>(size / 2 + 1));
    RealDft dft(size);
    dft.power(frame, powers);
    for (int k = 0; k <= size / 2; ++k) {
      long double re = 0;
      long double im = 0;
      for (int i = 0; i < size; ++i) {
        const long double angle = 2 * std::numbers::pi_v<long double> * (static_cast<long double>(i) * k) / size;
        re += frame[static_cast<std::size_t>(i)] * std::cos(angle);
        im -= frame[static_cast<std::size_t>(i)] * std::sin(angle);
      }
      EXPECT_NEAR(powers[static_cast<std::size_t>(k)], static_cast<double>(re * re + im * im), 1e-11 * size)
          << size << ", " << k;
    }
  }
}

TEST(RealDft, SupportedSizes) {
  for (const int size : {2, 4, 6, 10, 400, 480, 512, 8192}) EXPECT_TRUE(RealDft::supports(size)) << size;
  for (const int size : {-2, 0, 1, 3, 14, 22, 401, 402}) EXPECT_FALSE(RealDft::supports(size)) << size;
}

}  // namespace
}  // namespace millrace
