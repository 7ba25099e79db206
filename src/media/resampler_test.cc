#include "media/resampler.h"

#include <gtest/gtest.h>

#include "media/testing/sound.h"

namespace millrace {
namespace {

constexpr int kRates[] = {8000, 11025, 16000, 22050, 24000, 32000, 44100, 47999, 48000, 88200, 96000, 192000};

std::vector<float> resample(std::span<const float> in, int from, int to, std::size_t block) {
  auto resampler = Resampler::create(from, to);
  EXPECT_TRUE(resampler.ok()) << resampler.status().to_string();
  std::vector<float> out;
  for (std::size_t at = 0; at < in.size(); at += block) {
    EXPECT_TRUE(resampler->process(in.subspan(at, std::min(block, in.size() - at)), out).ok());
  }
  EXPECT_TRUE(resampler->finish(out).ok());
  return out;
}

std::span<const float> middle(const std::vector<float>& samples) {
  return std::span(samples).subspan(samples.size() / 8, samples.size() * 3 / 4);
}

TEST(Resampler, LengthIsThatOfTheFormula) {
  EXPECT_EQ(resampled_length(0, 44100, 16000), 0);
  EXPECT_EQ(resampled_length(441, 44100, 16000), 160);
  EXPECT_EQ(resampled_length(442, 44100, 16000), 161);
  EXPECT_EQ(resampled_length(3600ll * 192000, 192000, 16000), 3600ll * 16000);
  for (const int rate : kRates) {
    for (const std::size_t count : {1, 2, 3, 7, 159, 160, 161, 1000, 4095, 4096, 4097, 12289, 50001}) {
      const std::vector<float> in(count, 0.25f);
      const auto wanted = static_cast<std::size_t>(resampled_length(static_cast<int64_t>(count), rate, 16000));
      EXPECT_EQ(resample(in, rate, 16000, 4096).size(), wanted) << rate << " Hz, " << count;
      EXPECT_EQ(resample(in, 24000, rate, 1000).size(),
                static_cast<std::size_t>(resampled_length(static_cast<int64_t>(count), 24000, rate)));
    }
  }
}

TEST(Resampler, KeepsTheAmplitudeOfTones) {
  for (const int rate : kRates) {
    for (const double frequency : {100.0, 440.0, 1000.0, 3000.0, 3500.0, 5000.0, 7000.0}) {
      if (frequency > 0.45 * rate) continue;
      const auto out = resample(tone(frequency, rate, static_cast<std::size_t>(rate), 0.5), rate, 16000, 4096);
      EXPECT_NEAR(amplitude_of(middle(out), frequency, 16000), 0.5, 0.5 * 0.005)
          << rate << " Hz, tone of " << frequency;
    }
  }
}

TEST(Resampler, KeepsThePhase) {
  for (const int rate : kRates) {
    const auto out = resample(tone(1000, rate, static_cast<std::size_t>(rate)), rate, 16000, 4096);
    const auto wanted = tone(1000, 16000, out.size());
    EXPECT_GT(signal_to_noise(middle(out), middle(wanted)), 80) << rate << " Hz";
  }
}

TEST(Resampler, SuppressesAliases) {
  for (const int rate : kRates) {
    for (const double frequency : {8100.0, 8500.0, 9000.0, 12000.0, 15999.0, 20000.0, 40000.0}) {
      if (frequency >= 0.5 * rate) continue;
      const auto in = tone(frequency, rate, static_cast<std::size_t>(rate));
      const auto out = resample(in, rate, 16000, 4096);
      EXPECT_LT(10 * std::log10(power(middle(out)) / power(in) + 1e-30), -60) << rate << " Hz, tone of " << frequency;
    }
  }
}

// Images of a tone when the rate rises: everything but the tone itself.
TEST(Resampler, SuppressesImages) {
  const auto out = resample(tone(3000, 8000, 8000), 8000, 16000, 4096);
  EXPECT_GT(signal_to_noise(middle(out), middle(tone(3000, 16000, out.size()))), 60);
}

TEST(Resampler, BlocksDoNotMatter) {
  const auto in = tone(777, 44100, 20000);
  for (const int rate : kRates) {
    const auto wanted = resample(in, rate, 16000, in.size());
    for (const std::size_t block : {std::size_t{1}, std::size_t{777}, std::size_t{4096}}) {
      EXPECT_EQ(resample(in, rate, 16000, block), wanted) << rate << " Hz in blocks of " << block;
    }
  }
}

TEST(Resampler, EqualRatesPassUnchanged) {
  const std::vector<float> in = {1.0f, -3e-39f, 0.1f, -0.0f, 12345.678f};
  const auto out = resample(in, 16000, 16000, 2);
  ASSERT_EQ(out.size(), in.size());
  EXPECT_EQ(std::memcmp(out.data(), in.data(), in.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace millrace
