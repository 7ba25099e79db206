// What an audio file's structure states, checked before a decoder reads it. For this folder alone.
//
// The decoders are lenient: they take the bytes that are left where a header states more, end at the first gap, and
// ignore a second stream. Here these are errors.
//
// Thread safety: free functions without state.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "media/audio.h"

namespace millrace::audio {

enum class Container : uint8_t { kWav, kFlac, kVorbis, kOpus, kMp3 };
std::string_view container_name(Container container);  // "WAV", "FLAC", "Ogg Vorbis", "Ogg Opus", "MP3"

// By the first bytes. kInvalidArgument: none of these. kUnsupported: another codec in Ogg.
Result<Container> find_container(std::span<const uint8_t> bytes);

// Ogg: one stream of complete pages to the one that is marked as the last. MP3: no fewer bytes than its first frame
// states. Others: nothing; wav_layout.h reads WAV.
Status check_structure(Container container, std::span<const uint8_t> bytes);

// The checks that every file passes, from its header.
Status check_shape(int64_t rate, int64_t channels, const AudioLimits& limits);
Status check_length(int64_t frames, int64_t rate, const AudioLimits& limits);

}  // namespace millrace::audio
