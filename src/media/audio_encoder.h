// FLAC, Ogg Opus and MP3 by libsndfile. For this folder alone: audio_writer.h checks samples and rates.
// Thread safety: free functions without state of their own.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "media/audio_writer.h"

namespace millrace::audio {

Result<std::string> encode_flac(std::span<const int16_t> samples, int rate);
Result<std::string> encode_lossy(std::span<const float> samples, int rate, AudioFormat format);  // kOpus, kMp3

}  // namespace millrace::audio
