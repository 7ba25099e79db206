#include "media/audio_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "media/audio.h"
#include "media/resampler.h"
#include "media/testing/golden.h"
#include "media/testing/sound.h"

namespace millrace {
namespace {

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::vector<float> spoken() {
  return decode_audio(read_bytes(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/audio/speech.flac")).value();
}

std::vector<float> read_back(const std::string& file) {
  const auto samples = decode_audio(bytes_of(file));
  EXPECT_TRUE(samples.ok()) << samples.status().to_string();
  return samples.ok() ? *samples : std::vector<float>();
}

TEST(AudioWriter, LosslessFormatsGiveTheSamplesBack) {
  const auto samples = spoken();  // multiples of 2^-15
  EXPECT_EQ(read_back(encode_audio(samples, 16000, AudioFormat::kWav).value()), samples);
  EXPECT_EQ(read_back(encode_audio(samples, 16000, AudioFormat::kFlac).value()), samples);
  const auto pcm = encode_audio(samples, 16000, AudioFormat::kPcm16).value();
  ASSERT_EQ(pcm.size(), 2 * samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const int value =
        static_cast<int16_t>(static_cast<uint8_t>(pcm[2 * i]) | static_cast<uint8_t>(pcm[2 * i + 1]) << 8);
    ASSERT_EQ(static_cast<float>(value) / 32768, samples[i]) << i;
  }
  EXPECT_EQ(encode_audio(samples, 16000, AudioFormat::kWav).value().substr(44), pcm);
}

TEST(AudioWriter, SixteenBitsAreRoundedAndCut) {
  const std::vector<float> samples = {0,     1,     -1,     2,      -2,    0.5f / 32768, 1.5f / 32768, -0.6f / 32768,
                                      1e30f, 0.25f, -0.25f, -1e30f, 1e-30f};
  const auto pcm = encode_audio(samples, 24000, AudioFormat::kPcm16).value();
  std::vector<int16_t> values(samples.size());
  std::memcpy(values.data(), pcm.data(), pcm.size());
  EXPECT_EQ(values, (std::vector<int16_t>{0, 32767, -32768, 32767, -32768, 0, 2, -1, 32767, 8192, -8192, -32768, 0}));
}

TEST(AudioWriter, EveryFormatKeepsLengthAndSound) {
  const auto samples = spoken();
  for (const int rate : {8000, 12000, 16000, 24000, 48000}) {
    auto resampler = Resampler::create(16000, rate);
    std::vector<float> resampled;
    ASSERT_TRUE(resampler->process(samples, resampled).ok() && resampler->finish(resampled).ok());
    for (const AudioFormat format : {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3}) {
      const auto name = fmt::format("{} at {} Hz", audio_format_name(format), rate);
      const auto file = encode_audio(resampled, rate, format);
      ASSERT_TRUE(file.ok()) << name << ": " << file.status().to_string();
      const auto info = read_audio_info(bytes_of(*file));
      ASSERT_TRUE(info.ok()) << name << ": " << info.status().to_string();
      EXPECT_EQ(info->channels, 1) << name;
      EXPECT_EQ(info->rate, format == AudioFormat::kOpus ? 48000 : rate) << name;
      EXPECT_EQ(info->frames * rate, static_cast<int64_t>(resampled.size()) * info->rate) << name;
      // A low rate and Opus, which does not keep the waveform, cost most; a delay of a few samples would cost all.
      EXPECT_GT(signal_to_noise(read_back(*file), samples), format == AudioFormat::kOpus ? 7 : 11) << name;
      if (format == AudioFormat::kOpus || format == AudioFormat::kMp3) {
        EXPECT_LT(file->size(), resampled.size() / 2) << name;
      }
      EXPECT_EQ(encode_audio(resampled, rate, format).value(), *file) << name << ": equal samples, equal bytes";
    }
  }
}

TEST(AudioWriter, ShortestFiles) {
  for (const std::size_t count : {1, 2, 100, 959, 960, 961, 4096, 4097}) {
    const auto samples = tone(440, 24000, count);
    for (const AudioFormat format : {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3}) {
      const auto file = encode_audio(samples, 24000, format);
      ASSERT_TRUE(file.ok()) << count << ": " << file.status().to_string();
      EXPECT_EQ(read_back(*file).size(), (count * 2 + 2) / 3) << count << " of " << audio_format_name(format);
    }
  }
}

TEST(AudioWriter, StreamsAreTheFileWithoutItsLength) {
  const auto samples = spoken();
  for (const AudioFormat format : {AudioFormat::kWav, AudioFormat::kPcm16}) {
    auto stream = AudioStream::create(16000, format);
    ASSERT_TRUE(stream.ok());
    std::string file = stream->write({}).value();
    EXPECT_EQ(file.size(), format == AudioFormat::kWav ? 44u : 0u);
    for (std::size_t at = 0, size = 1; at < samples.size(); at += size, size = size * 3 + 1) {
      size = std::min(size, samples.size() - at);
      const auto chunk = stream->write(std::span(samples).subspan(at, size)).value();
      EXPECT_EQ(chunk.size(), 2 * size);
      file += chunk;
    }
    std::string wanted = encode_audio(samples, 16000, format).value();
    if (format == AudioFormat::kWav) {
      wanted.replace(4, 4, "\xFF\xFF\xFF\xFF");
      wanted.replace(40, 4, "\xFF\xFF\xFF\xFF");
      EXPECT_EQ(read_back(file), samples);
    }
    EXPECT_EQ(file, wanted);
  }
  auto stream = AudioStream::create(16000, AudioFormat::kWav);
  EXPECT_EQ(stream->write(std::vector<float>{0.5f})->size(), 46u);
  EXPECT_EQ(stream->write(std::vector<float>{0.5f})->size(), 2u);
}

TEST(AudioWriter, Refusals) {
  const std::vector<float> samples(100, 0.1f);
  const auto message = [](const auto& result) {
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return result.status().message();
  };
  EXPECT_EQ(message(encode_audio({}, 24000, AudioFormat::kWav)), "the audio has 0 samples; wanted at least 1");
  EXPECT_EQ(message(encode_audio(samples, 0, AudioFormat::kWav)), "the rate of wav is 0; wanted 1 to 384000");
  EXPECT_EQ(message(encode_audio(samples, 384001, AudioFormat::kFlac)),
            "the rate of flac is 384001; wanted 1 to 384000");
  EXPECT_EQ(message(encode_audio(samples, 44100, AudioFormat::kOpus)),
            "the rate of opus is 44100; wanted one of 8000, 12000, 16000, 24000, 48000");
  EXPECT_EQ(message(encode_audio(samples, 96000, AudioFormat::kMp3)),
            "the rate of mp3 is 96000; wanted one of 8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000");
  EXPECT_EQ(message(AudioStream::create(24000, AudioFormat::kMp3)),
            "the format of a stream is mp3; wanted wav or pcm16");
  auto stream = AudioStream::create(24000, AudioFormat::kWav);
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> broken = samples;
    broken[77] = value;
    const auto wanted = fmt::format("sample 77 is {}; wanted a finite number", value);
    for (const AudioFormat format : {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3}) {
      EXPECT_EQ(message(encode_audio(broken, 24000, format)), wanted);
    }
    EXPECT_EQ(message(stream->write(broken)), wanted);
  }
  EXPECT_EQ(stream->write(samples)->size(), 244u);  // the header was not lost
}

TEST(AudioWriter, Names) {
  for (const AudioFormat format :
       {AudioFormat::kWav, AudioFormat::kFlac, AudioFormat::kOpus, AudioFormat::kMp3, AudioFormat::kPcm16}) {
    EXPECT_EQ(find_audio_format(audio_format_name(format)), format);
    EXPECT_EQ(audio_content_type(format).substr(0, 6), "audio/");
  }
  EXPECT_EQ(find_audio_format("pcm"), AudioFormat::kPcm16);
  EXPECT_EQ(find_audio_format("aac"), std::nullopt);
  EXPECT_EQ(find_audio_format("WAV"), std::nullopt);
}

}  // namespace
}  // namespace millrace
