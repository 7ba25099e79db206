#include "media/audio_writer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>
#include <vector>

#include "media/audio_encoder.h"

namespace millrace {
namespace {

constexpr int kMaxRate = 384000;
constexpr uint32_t kUnknownLength = 0xFFFFFFFFu;
constexpr std::array<int, 5> kOpusRates = {8000, 12000, 16000, 24000, 48000};
constexpr std::array<int, 9> kMpegRates = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000};

struct FormatNames {
  AudioFormat format;
  std::string_view name;
  std::string_view content_type;
};

constexpr std::array<FormatNames, 5> kFormats = {{{AudioFormat::kWav, "wav", "audio/wav"},
                                                  {AudioFormat::kFlac, "flac", "audio/flac"},
                                                  {AudioFormat::kOpus, "opus", "audio/ogg"},
                                                  {AudioFormat::kMp3, "mp3", "audio/mpeg"},
                                                  {AudioFormat::kPcm16, "pcm16", "audio/pcm"}}};

Status check_rate(int rate, AudioFormat format) {
  const auto one_of = [&](std::span<const int> rates) -> Status {
    if (std::find(rates.begin(), rates.end(), rate) != rates.end()) return ok_status();
    std::string list;
    for (const int wanted : rates) list += fmt::format("{}{}", list.empty() ? "" : ", ", wanted);
    return invalid_argument("the rate of {} is {}; wanted one of {}", audio_format_name(format), rate, list);
  };
  if (format == AudioFormat::kOpus) return one_of(kOpusRates);
  if (format == AudioFormat::kMp3) return one_of(kMpegRates);
  if (rate >= 1 && rate <= kMaxRate) return ok_status();
  return invalid_argument("the rate of {} is {}; wanted 1 to {}", audio_format_name(format), rate, kMaxRate);
}

Status check_finite(std::span<const float> samples) {
  const auto bad = std::find_if(samples.begin(), samples.end(), [](float value) { return !std::isfinite(value); });
  if (bad == samples.end()) return ok_status();
  return invalid_argument("sample {} is {}; wanted a finite number", bad - samples.begin(), *bad);
}

int16_t to_int16(float value) {
  return static_cast<int16_t>(std::nearbyint(std::clamp(value * 32768.0f, -32768.0f, 32767.0f)));
}

void put(std::string& out, uint32_t value, int width) {
  for (int i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> 8 * i));
}

void put_samples(std::string& out, std::span<const float> samples) {
  out.reserve(out.size() + 2 * samples.size());
  for (const float value : samples) put(out, static_cast<uint16_t>(to_int16(value)), 2);
}

// 44 bytes: mono, PCM of 16 bits. `data_bytes`: kUnknownLength for a stream.
std::string wav_header(int rate, uint32_t data_bytes) {
  std::string out = "RIFF";
  put(out, data_bytes == kUnknownLength ? kUnknownLength : 36 + data_bytes, 4);
  out += "WAVEfmt ";
  put(out, 16, 4);
  put(out, 1, 2);
  put(out, 1, 2);
  put(out, static_cast<uint32_t>(rate), 4);
  put(out, 2 * static_cast<uint32_t>(rate), 4);
  put(out, 2, 2);
  put(out, 16, 2);
  out += "data";
  put(out, data_bytes, 4);
  return out;
}

Result<std::string> encode_checked(std::span<const float> samples, int rate, AudioFormat format) {
  std::string out;
  switch (format) {
    case AudioFormat::kWav:
      out = wav_header(rate, static_cast<uint32_t>(2 * samples.size()));
      [[fallthrough]];
    case AudioFormat::kPcm16:
      put_samples(out, samples);
      return out;
    case AudioFormat::kFlac: {
      std::vector<int16_t> values(samples.size());
      std::transform(samples.begin(), samples.end(), values.begin(), to_int16);
      return audio::encode_flac(values, rate);
    }
    case AudioFormat::kOpus:
    case AudioFormat::kMp3: {
      std::vector<float> values(samples.size());
      std::transform(samples.begin(), samples.end(), values.begin(),
                     [](float value) { return std::clamp(value, -1.0f, 1.0f); });
      return audio::encode_lossy(values, rate, format);
    }
  }
  return internal_error("no format {}", static_cast<int>(format));
}

}  // namespace

std::string_view audio_format_name(AudioFormat format) { return kFormats[static_cast<std::size_t>(format)].name; }

std::string_view audio_content_type(AudioFormat format) {
  return kFormats[static_cast<std::size_t>(format)].content_type;
}

std::optional<AudioFormat> find_audio_format(std::string_view name) {
  if (name == "pcm") return AudioFormat::kPcm16;
  for (const FormatNames& one : kFormats) {
    if (one.name == name) return one.format;
  }
  return std::nullopt;
}

Result<std::string> encode_audio(std::span<const float> samples, int rate, AudioFormat format) {
  RETURN_IF_ERROR(check_rate(rate, format));
  if (samples.empty()) return invalid_argument("the audio has 0 samples; wanted at least 1");
  if (samples.size() > kMaxEncodedSamples) {
    return error(StatusCode::kTooLarge, "the audio has {} samples; wanted at most {}", samples.size(),
                 kMaxEncodedSamples);
  }
  RETURN_IF_ERROR(check_finite(samples));
  try {
    auto file = encode_checked(samples, rate, format);
    if (!file.ok()) return file.status().with_prefix(audio_format_name(format));
    return file;
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "no memory left to encode {} samples", samples.size());
  }
}

Result<AudioStream> AudioStream::create(int rate, AudioFormat format) {
  if (format != AudioFormat::kWav && format != AudioFormat::kPcm16) {
    return invalid_argument("the format of a stream is {}; wanted wav or pcm16", audio_format_name(format));
  }
  RETURN_IF_ERROR(check_rate(rate, format));
  return AudioStream(format == AudioFormat::kWav ? wav_header(rate, kUnknownLength) : std::string());
}

Result<std::string> AudioStream::write(std::span<const float> samples) {
  RETURN_IF_ERROR(check_finite(samples));
  std::string out = std::move(header_);
  header_.clear();
  put_samples(out, samples);
  return out;
}

}  // namespace millrace
