#include "examples/workers/formulas.h"

#include <algorithm>

namespace millrace::examples {

uint64_t fnv(std::span<const std::byte> bytes, uint64_t hash) {
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001B3u;
  return hash;
}

uint64_t fnv(std::string_view text) { return fnv(std::as_bytes(std::span(text.data(), text.size()))); }

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

std::vector<uint8_t> make_pixels(int64_t width, int64_t height, uint64_t seed) {
  std::vector<uint8_t> pixels(static_cast<std::size_t>(width * height * 3));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(mix(seed + i) >> 56);
  return pixels;
}

std::vector<int16_t> make_samples(int64_t samples, uint64_t seed) {
  std::vector<int16_t> sound(static_cast<std::size_t>(samples));
  for (std::size_t i = 0; i < sound.size(); ++i) sound[i] = static_cast<int16_t>(mix(seed + i) >> 48);
  return sound;
}

std::vector<uint8_t> box_filter(std::span<const uint8_t> pixels, int64_t height, int64_t width, int64_t size) {
  std::vector<uint8_t> out;
  out.reserve(static_cast<std::size_t>(size * size * 3));
  for (int64_t y = 0; y < size; ++y) {
    const int64_t y0 = y * height / size, y1 = std::max(y0 + 1, (y + 1) * height / size);
    for (int64_t x = 0; x < size; ++x) {
      const int64_t x0 = x * width / size, x1 = std::max(x0 + 1, (x + 1) * width / size);
      for (int64_t c = 0; c < 3; ++c) {
        int64_t sum = 0;
        for (int64_t sy = y0; sy < y1; ++sy) {
          for (int64_t sx = x0; sx < x1; ++sx) sum += pixels[static_cast<std::size_t>((sy * width + sx) * 3 + c)];
        }
        out.push_back(static_cast<uint8_t>(sum / ((y1 - y0) * (x1 - x0))));
      }
    }
  }
  return out;
}

std::vector<int64_t> energies(std::span<const int16_t> samples, int64_t window) {
  std::vector<int64_t> out;
  for (std::size_t begin = 0; begin < samples.size(); begin += static_cast<std::size_t>(window)) {
    const std::size_t end = std::min(samples.size(), begin + static_cast<std::size_t>(window));
    int64_t sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += int64_t{samples[i]} * samples[i];
    out.push_back(sum);
  }
  return out;
}

int64_t thought_token(uint64_t seed, uint64_t step) { return static_cast<int64_t>(mix(seed + step) % 26); }

std::vector<uint8_t> thought_row(uint64_t seed, uint64_t step, int64_t width) {
  std::vector<uint8_t> row(static_cast<std::size_t>(width));
  for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<uint8_t>(mix(seed + step * 1000003 + j) >> 56);
  return row;
}

std::vector<int32_t> speech_codes(uint64_t seed, int64_t token, std::span<const uint8_t> row) {
  int64_t sum = 0;
  for (const uint8_t b : row) sum += b;
  std::vector<int32_t> codes;
  for (int64_t k = 0; k < 4; ++k) {
    codes.push_back(static_cast<int32_t>((token * 31 + sum + k * 17 + static_cast<int64_t>(seed % 97)) % 1024));
  }
  return codes;
}

std::vector<int16_t> tone(std::span<const int32_t> codes, int64_t samples) {
  std::vector<int16_t> out;
  const int64_t step = (int64_t{codes[0]} + 1) * 64;
  const int64_t loud = codes[1] % 8 + 1;
  for (int64_t n = 0; n < samples; ++n) out.push_back(static_cast<int16_t>(((n * step & 0xFFFF) - 32768) * loud / 8));
  return out;
}

std::string text_of(const Value& payload) {
  const Value* text = payload.find("text");
  const std::string* string = text ? text->get<std::string>() : nullptr;
  return string ? *string : "";
}

std::vector<std::string> modalities_of(const Value& payload) {
  const Value* value = payload.find("modalities");
  const ValueList* list = value ? value->get<ValueList>() : nullptr;
  std::vector<std::string> names;
  if (!list) return {"text"};
  for (const Value& name : *list) {
    if (const std::string* text = name.get<std::string>()) names.push_back(*text);
  }
  return names;
}

bool wants(const Value& payload, std::string_view modality) {
  const std::vector<std::string> names = modalities_of(payload);
  return std::find(names.begin(), names.end(), modality) != names.end();
}

bool has(const Value& payload, std::string_view key) {
  const Value* value = payload.find(key);
  return value && !value->is<std::monostate>();
}

Result<int64_t> int_of(const Value& map, std::string_view key, int64_t otherwise, int64_t least, int64_t most) {
  if (!has(map, key)) return otherwise;
  const int64_t* number = map.find(key)->get<int64_t>();
  if (!number) return invalid_argument("{} is a {}; wanted a whole number", key, kind_name(*map.find(key)));
  if (*number < least || *number > most) {
    return invalid_argument("{} is {}; wanted {} to {}", key, *number, least, most);
  }
  return *number;
}

Result<const SharedTensor*> tensor_of(const Value& map, std::string_view key, DType dtype, int rank) {
  const Value* value = map.find(key);
  if (!value) return invalid_argument("there is no {}; wanted a tensor", key);
  const SharedTensor* tensor = value->get<SharedTensor>();
  if (!tensor) return invalid_argument("{} is a {}; wanted a tensor", key, kind_name(*value));
  if (tensor->dtype == dtype && tensor->shape.rank() == rank) return tensor;
  return invalid_argument("{} is {} {}; wanted {} with {} extents", key, dtype_name(tensor->dtype),
                          tensor->shape.to_string(), dtype_name(dtype), rank);
}

}  // namespace millrace::examples
