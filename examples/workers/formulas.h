// The formulas of the example workers: hashes, a box filter, energies, a tone. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "payload/value.h"

namespace millrace::examples {

// FNV-1a with 64 bits; goes on from `hash`.
uint64_t fnv(std::span<const std::byte> bytes, uint64_t hash = 0xCBF29CE484222325u);
uint64_t fnv(std::string_view text);
// SplitMix64 of the number.
uint64_t mix(uint64_t x);
// 16 digits.
std::string hex(uint64_t x);

template <typename T>
SharedTensor make_tensor(DType dtype, Shape shape, const std::vector<T>& values) {
  Buffer buffer(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) buffer.as<T>()[i] = values[i];
  return {.dtype = dtype, .shape = shape, .bytes = SharedBytes(std::move(buffer))};
}

// Byte i of the picture or sample i of the sound with that seed.
std::vector<uint8_t> make_pixels(int64_t width, int64_t height, uint64_t seed);
std::vector<int16_t> make_samples(int64_t samples, uint64_t seed);

// [height, width, 3] to [size, size, 3]: the mean, rounded down, of the source's pixels from y * height / size up to
// (y + 1) * height / size, at least one; so for x.
std::vector<uint8_t> box_filter(std::span<const uint8_t> pixels, int64_t height, int64_t width, int64_t size);
// The sum of the squares of each window; the last one may be shorter.
std::vector<int64_t> energies(std::span<const int16_t> samples, int64_t window);

// Step i of a thought: a token of 0..25, and a row of bytes.
int64_t thought_token(uint64_t seed, uint64_t step);
std::vector<uint8_t> thought_row(uint64_t seed, uint64_t step, int64_t width);
// What is said for one step.
std::vector<int32_t> speech_codes(uint64_t seed, int64_t token, std::span<const uint8_t> row);
// A sawtooth.
std::vector<int16_t> tone(std::span<const int32_t> codes, int64_t samples);

// ---- reading payloads

std::string text_of(const Value& payload);                     // "" where there is none
std::vector<std::string> modalities_of(const Value& payload);  // {"text"} where there are none
bool wants(const Value& payload, std::string_view modality);
bool has(const Value& payload, std::string_view key);  // and it is not null
Result<int64_t> int_of(const Value& map, std::string_view key, int64_t otherwise, int64_t least, int64_t most);
Result<const SharedTensor*> tensor_of(const Value& map, std::string_view key, DType dtype, int rank);

}  // namespace millrace::examples
