// Any bytes as an audio file: refused with a reason, or as many finite samples as the header's reader stated, which
// make a spectrogram of numbers.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "media/audio.h"
#include "media/log_mel.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  const millrace::AudioLimits limits = {.max_bytes = 1u << 20, .max_seconds = 10};
  const auto samples = millrace::decode_audio(bytes, limits);
  const auto info = millrace::read_audio_info(bytes, limits);
  if (!info.ok() && info.status().message().empty()) std::abort();
  if (!samples.ok()) {
    if (samples.status().message().empty()) std::abort();
    return 0;
  }
  if (!info.ok() || info->samples != static_cast<int64_t>(samples->size())) std::abort();
  if (info->samples > 10 * millrace::kSpeechRate + 1) std::abort();
  for (const float value : *samples) {
    if (!std::isfinite(value)) std::abort();
  }
  const millrace::MelConfig config;
  const auto mel = millrace::log_mel(*samples, config);
  if (mel.ok() != (millrace::mel_frames(info->samples, config) > 0)) std::abort();
  if (!mel.ok()) return 0;
  for (const float value : *mel) {
    if (!std::isfinite(value)) std::abort();
  }
  return 0;
}
