#include "media/audio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "base/json.h"
#include "media/data_url.h"
#include "media/resampler.h"
#include "media/testing/golden.h"
#include "media/testing/sound.h"

namespace millrace {
namespace {

const std::string kSounds = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/audio/";

const Json& sound_files() {
  static const Json root = parse_json(read_text(kSounds + "files.json")).value();
  return root;
}

std::vector<uint8_t> sound_file(const std::string& name) { return read_bytes(kSounds + name); }

std::vector<uint8_t> silence(uint32_t rate, uint32_t channels, std::size_t frames) {
  return WavFile{.channels = channels, .rate = rate, .data = std::vector<uint8_t>(2 * channels * frames)}.bytes();
}

Status failure_of(const std::vector<uint8_t>& bytes, const AudioLimits& limits = {}) {
  const auto samples = decode_audio(bytes, limits);
  EXPECT_FALSE(samples.ok());
  return samples.status();
}

// Both functions refuse, in the same words.
std::string refusal(const std::vector<uint8_t>& bytes, StatusCode code, const AudioLimits& limits = {}) {
  const Status decoded = failure_of(bytes, limits);
  const auto info = read_audio_info(bytes, limits);
  EXPECT_FALSE(info.ok());
  EXPECT_EQ(decoded.code(), code) << decoded.to_string();
  EXPECT_EQ(info.status().message(), decoded.message());
  return decoded.message();
}

TEST(Audio, EveryWavEncodingHasItsSamples) {
  ASSERT_EQ(sound_files()["wav"].size(), 19u);
  for (const Json& one : sound_files()["wav"]) {
    const auto name = one["name"].get<std::string>();
    const auto bytes = decode_base64(one["data"].get<std::string>(), 1 << 20).value();
    const auto info = read_audio_info(bytes);
    ASSERT_TRUE(info.ok()) << name << ": " << info.status().to_string();
    EXPECT_EQ(info->rate, 16000) << name;
    EXPECT_EQ(info->channels, one["channels"].get<int>()) << name;
    EXPECT_EQ(info->frames, one["frames"].get<int64_t>()) << name;
    const auto samples = decode_audio(bytes);
    ASSERT_TRUE(samples.ok()) << name << ": " << samples.status().to_string();
    EXPECT_EQ(static_cast<int64_t>(samples->size()), info->samples) << name;
    EXPECT_EQ(crc32(float_bytes(*samples)), one["crc"].get<uint32_t>()) << name;
  }
}

TEST(Audio, EveryFormatHasTheLengthOfOtherDecoders) {
  ASSERT_EQ(sound_files()["speech"].size(), 5u);
  for (const auto& [name, wanted] : sound_files()["speech"].items()) {
    const auto info = read_audio_info(sound_file(name));
    ASSERT_TRUE(info.ok()) << name << ": " << info.status().to_string();
    EXPECT_EQ(info->rate, wanted["rate"].get<int>()) << name;
    EXPECT_EQ(info->channels, wanted["channels"].get<int>()) << name;
    EXPECT_EQ(info->frames, wanted["frames"].get<int64_t>()) << name;
    EXPECT_EQ(info->samples, (info->frames * 16000 + info->rate - 1) / info->rate) << name;
    const auto samples = decode_audio(sound_file(name));
    ASSERT_TRUE(samples.ok()) << name << ": " << samples.status().to_string();
    EXPECT_EQ(static_cast<int64_t>(samples->size()), info->samples) << name;
  }
}

// The lossless file is the original; the others, at 22 to 48 kHz, must be the same speech at the same time.
TEST(Audio, LossyFilesAreTheSameSpeech) {
  const auto original = decode_audio(sound_file("speech.flac")).value();
  EXPECT_GT(power(original), 1e-4);
  for (const char* name : {"speech.ogg", "speech.opus", "speech.mp3"}) {
    const auto samples = decode_audio(sound_file(name)).value();
    EXPECT_GT(signal_to_noise(samples, original), 12) << name;
    EXPECT_NEAR(power(samples) / power(original), 0.81, 0.08) << name;  // encoded at 0.9 of the amplitude
    EXPECT_LT(signal_to_noise(std::span(samples).subspan(4), original), 5) << name << " is not delayed";
  }
  // Without a header that states the encoder's delay: 1105 samples of 22050 Hz are 802.
  constexpr std::size_t kDelay = 802;
  const auto plain = decode_audio(sound_file("plain.mp3")).value();
  EXPECT_GT(signal_to_noise(std::span(plain).subspan(kDelay), original), 10);
}

TEST(Audio, SixteenKilohertzPassesUnchanged) {
  std::vector<float> wanted = tone(1234, 16000, 5001);
  wanted[17] = 1e-42f;
  wanted[18] = 1000.5f;
  const auto samples = decode_audio(float_wav(wanted, 16000));
  ASSERT_TRUE(samples.ok()) << samples.status().to_string();
  ASSERT_EQ(samples->size(), wanted.size());
  EXPECT_EQ(std::memcmp(samples->data(), wanted.data(), wanted.size() * sizeof(float)), 0);
}

TEST(Audio, ResamplesWhatTheResamplerGives) {
  const auto in = tone(500, 48000, 30001);
  const auto samples = decode_audio(float_wav(in, 48000)).value();
  auto resampler = Resampler::create(48000, 16000);
  std::vector<float> wanted;
  ASSERT_TRUE(resampler->process(in, wanted).ok() && resampler->finish(wanted).ok());
  EXPECT_EQ(samples, wanted);
  EXPECT_EQ(samples.size(), 10001u);
}

TEST(Audio, TheMeanOfTheChannels) {
  std::vector<float> frames;
  for (int i = 0; i < 5000; ++i) {
    for (int c = 0; c < 6; ++c) frames.push_back(c == i % 6 ? 0.6f : 0.0f);
  }
  const auto samples = decode_audio(float_wav(frames, 16000, 6)).value();
  ASSERT_EQ(samples.size(), 5000u);
  for (const float value : samples) EXPECT_FLOAT_EQ(value, 0.1f);
}

TEST(Audio, ShortestFiles) {
  for (const std::size_t count : {1, 159, 160, 161, 399, 400, 4096, 4097}) {
    EXPECT_EQ(decode_audio(silence(16000, 1, count))->size(), count);
    EXPECT_EQ(decode_audio(silence(48000, 2, count))->size(), (count + 2) / 3);
  }
}

// Programs that write to a pipe do not know the length: both sizes are 0xFFFFFFFF.
TEST(Audio, AStreamedWavEndsWithTheFile) {
  WavFile file{.riff_size = 0xFFFFFFFFu, .data_size = 0xFFFFFFFFu, .data = std::vector<uint8_t>(1001)};
  const auto info = read_audio_info(file.bytes());
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->frames, 500);
  EXPECT_EQ(decode_audio(file.bytes())->size(), 500u);
  file.riff_size = 0;
  EXPECT_EQ(refusal(file.bytes(), StatusCode::kInvalidArgument),
            "WAV: its samples have 1001 bytes; wanted 4294967295, as its header states");
}

// What programs put around the samples: chunks of odd sizes before and behind, bytes that belong to none.
TEST(Audio, OtherChunksOfAWavAreSkipped) {
  const auto chunk = [](std::string_view name, std::size_t size) {
    std::vector<uint8_t> out(name.begin(), name.end());
    for (int i = 0; i < 4; ++i) out.push_back(static_cast<uint8_t>(size >> 8 * i));
    out.insert(out.end(), size + size % 2, 'x');
    return out;
  };
  const auto wanted = tone(300, 16000, 1001, 0.25);
  const auto plain = float_wav(wanted, 16000);
  for (const std::size_t at : {std::size_t{12}, std::size_t{36}, plain.size()}) {
    for (const std::size_t size : {0, 1, 26, 601}) {
      for (const char* name : {"LIST", "JUNK", "fact", "id3 ", "bext"}) {
        if (size < 4 && std::string_view(name) == "LIST") continue;
        auto file = plain;
        const auto other = chunk(name, size);
        file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), other.begin(), other.end());
        const auto samples = decode_audio(file);
        ASSERT_TRUE(samples.ok()) << name << " of " << size << " at " << at << ": " << samples.status().to_string();
        EXPECT_EQ(*samples, wanted) << name << " of " << size << " at " << at;
      }
    }
  }
  auto file = plain;
  file.insert(file.end(), {1, 2, 3});
  EXPECT_EQ(decode_audio(file).value(), wanted);
}

TEST(Audio, TagsAroundAnMp3AreSkipped) {
  const auto plain = sound_file("plain.mp3");
  const auto wanted = decode_audio(plain).value();
  std::vector<uint8_t> file = {'I', 'D', '3', 4, 0, 0, 0, 0, 9, 0x44};  // 9 * 128 + 0x44 bytes follow
  file.resize(10 + 9 * 128 + 0x44, 0xFF);                               // what a search for a frame would take for one
  file.insert(file.end(), plain.begin(), plain.end());
  const std::string tag = "TAG" + std::string(125, ' ');
  file.insert(file.end(), tag.begin(), tag.end());
  const auto samples = decode_audio(file);
  ASSERT_TRUE(samples.ok()) << samples.status().to_string();
  EXPECT_EQ(*samples, wanted);
}

TEST(Audio, WavHeadersThatAreRefused) {
  const auto refused = [](WavFile file, StatusCode code = StatusCode::kInvalidArgument) {
    if (file.data.empty()) file.data.resize(64);
    return refusal(file.bytes(), code);
  };
  EXPECT_EQ(refused({.channels = 0, .frame_bytes = 2}), "WAV: the audio has 0 channels; wanted 1 to 8");
  EXPECT_EQ(refused({.channels = 9}), "WAV: the audio has 9 channels; wanted 1 to 8");
  EXPECT_EQ(refused({.channels = 65535}), "WAV: the audio has 65535 channels; wanted 1 to 8");
  EXPECT_EQ(refused({.rate = 0}), "WAV: the audio has 0 samples a second; wanted 8000 to 192000");
  EXPECT_EQ(refused({.rate = 7999}), "WAV: the audio has 7999 samples a second; wanted 8000 to 192000");
  EXPECT_EQ(refused({.rate = 0xFFFFFFFFu}), "WAV: the audio has 4294967295 samples a second; wanted 8000 to 192000");
  EXPECT_EQ(refused({.frame_bytes = 4}), "WAV: a frame of 1 channels with 16 bits has 4 bytes; wanted 2");
  EXPECT_EQ(refused({.data_size = 66}), "WAV: its samples have 64 bytes; wanted 66, as its header states");
  const std::string encodings =
      "; wanted PCM (1) of 8, 16, 24 or 32 bits, float (3) of 32 or 64, A-law (6) or u-law (7)";
  EXPECT_EQ(refused({.bits = 12}, StatusCode::kUnsupported), "WAV: its encoding is 1 with 12 bits" + encodings);
  EXPECT_EQ(refused({.tag = 17, .bits = 4}, StatusCode::kUnsupported),
            "WAV: its encoding is 17 with 4 bits" + encodings);
  EXPECT_EQ(refusal(WavFile{}.bytes(), StatusCode::kInvalidArgument),
            "WAV: the audio has 0 samples; wanted at least 1");
}

TEST(Audio, SamplesThatAreNoNumbers) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), 2e6f}) {
    for (const int rate : {16000, 44100}) {
      std::vector<float> frames(20000, 0.5f);
      frames[2 * 8191 + 1] = value;
      const Status status = failure_of(float_wav(frames, static_cast<uint32_t>(rate), 2));
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(status.message(),
                fmt::format("WAV: sample 8191 is {}; wanted a finite number of at most 1048576", value));
    }
  }
}

TEST(Audio, EachLimitNamesBothValues) {
  const auto file = silence(8000, 2, 16000);
  EXPECT_TRUE(decode_audio(file, {.max_bytes = file.size(), .max_seconds = 2, .max_channels = 2}).ok());
  EXPECT_EQ(refusal(file, StatusCode::kTooLarge, {.max_bytes = file.size() - 1}),
            fmt::format("the audio has {} bytes; wanted at most {}", file.size(), file.size() - 1));
  EXPECT_EQ(refusal(file, StatusCode::kTooLarge, {.max_seconds = 1.5}),
            "WAV: the audio has 2.0 seconds; wanted at most 1.5");
  EXPECT_EQ(refusal(file, StatusCode::kInvalidArgument, {.max_channels = 1}),
            "WAV: the audio has 2 channels; wanted 1 to 1");
  EXPECT_EQ(refusal(file, StatusCode::kInvalidArgument, {.min_rate = 8001}),
            "WAV: the audio has 8000 samples a second; wanted 8001 to 192000");
  for (const auto& [name, shape] : sound_files()["speech"].items()) {  // 2.99 s and more
    const auto message = refusal(sound_file(name), StatusCode::kTooLarge, {.max_seconds = 2});
    EXPECT_NE(message.find("seconds; wanted at most 2"), std::string::npos) << name << ": " << message;
  }
}

TEST(Audio, ErrorsStateWhatWasSeen) {
  const auto message = [](std::string_view text) {
    return refusal(std::vector<uint8_t>(text.begin(), text.end()), StatusCode::kInvalidArgument);
  };
  EXPECT_EQ(message(""), "the audio has 0 bytes; wanted a WAV, FLAC, Ogg or MP3 file");
  EXPECT_EQ(message("RIFF"),
            "the audio begins with the bytes 52 49 46 46; wanted a WAV, FLAC, Ogg (Vorbis, Opus) or "
            "MP3 file");
  EXPECT_EQ(message("RIFF....WAVE"), "WAV: it has no chunk data in 12 bytes");
  EXPECT_EQ(message("OggS"), "Ogg: it is truncated to 4 bytes");
}

// A recording of its first bytes alone. An MP3 that states no length is as complete as any other after each frame.
TEST(Audio, TruncatedFilesAreErrors) {
  for (const std::string name : {"speech.flac", "speech.ogg", "speech.opus", "speech.mp3"}) {
    const auto file = sound_file(name);
    for (std::size_t size = 0; size < file.size(); size += size < 400 ? 1 : 997) {
      const std::vector<uint8_t> cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      const Status status = failure_of(cut);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument)
          << name << " cut to " << size << ": " << status.to_string();
    }
  }
  const auto wav = silence(16000, 1, 500);
  for (std::size_t size = 0; size < wav.size(); ++size) {
    EXPECT_EQ(failure_of({wav.begin(), wav.begin() + static_cast<std::ptrdiff_t>(size)}).code(),
              StatusCode::kInvalidArgument)
        << size;
  }
}

// The decoder would end where the first states its end. Each may begin with a tag.
TEST(Audio, TwoMp3FilesInOneAreRefused) {
  const auto one = sound_file("speech.mp3");
  auto file = one;
  file.insert(file.end(), one.begin(), one.end());
  EXPECT_EQ(failure_of(file).message(), fmt::format("MP3: it has another MP3 at byte {}; wanted one", one.size()));
  file = one;
  file.insert(file.end(), {'I', 'D', '3', 4, 0, 0, 0, 0, 0, 2, 0, 0});
  file.insert(file.end(), one.begin(), one.end());
  EXPECT_EQ(failure_of(file).code(), StatusCode::kUnsupported);
}

TEST(Audio, AChainOfOggStreamsIsRefused) {
  auto file = sound_file("speech.ogg");
  const auto second = sound_file("speech.opus");
  const std::size_t first = file.size();
  file.insert(file.end(), second.begin(), second.end());
  EXPECT_EQ(refusal(file, StatusCode::kUnsupported),
            fmt::format("Ogg Vorbis: it has another stream at byte {}; wanted one stream", first));
}

// What STREAMINFO states: 36 bits of samples, of which 0 is "unknown".
TEST(Audio, FlacLengths) {
  auto file = sound_file("speech.flac");
  for (std::size_t at = 22; at < 26; ++at) file[at] = 0;
  const auto info = read_audio_info(file);
  ASSERT_TRUE(info.ok()) << info.status().to_string();
  EXPECT_EQ(info->samples, 47840);
  EXPECT_EQ(decode_audio(file)->size(), 47840u);
  file[24] = 0xBA;
  file[25] = 0xE1;  // 47841, one more than it has
  EXPECT_EQ(failure_of(file).message(),
            "FLAC: it is corrupt or truncated after 47840 samples; wanted 47841, as its header states");
  for (std::size_t at = 22; at < 26; ++at) file[at] = 0xFF;
  EXPECT_EQ(refusal(file, StatusCode::kTooLarge), "FLAC: the audio has 268435.5 seconds; wanted at most 600");
}

TEST(Audio, ManyThreadsDecodeTheSame) {
  const auto wanted = decode_audio(sound_file("speech.ogg")).value();
  const std::vector<uint8_t> broken = {'f', 'L', 'a', 'C', 0, 0};
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) {
        equal[t] += decode_audio(sound_file("speech.ogg")).value() == wanted;
        equal[t] += !decode_audio(broken).ok();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 6));
}

}  // namespace
}  // namespace millrace
