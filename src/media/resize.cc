#include "media/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/resize_passes.h"

namespace millrace {
namespace resize_passes {
namespace {

constexpr double kSupport = 2.0;

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

int32_t to_fixed(double weight) {
  const double scaled = weight * (1 << kFractionBits);
  return static_cast<int32_t>(weight < 0 ? -0.5 + scaled : 0.5 + scaled);
}

void split_weights(Taps& taps) {
  taps.low.resize(taps.weights.size() / 2);
  taps.high.resize(taps.weights.size() / 2);
  for (std::size_t i = 0; i < taps.low.size(); ++i) {
    const int32_t a = taps.weights[2 * i];
    const int32_t b = taps.weights[2 * i + 1];
    taps.low[i] = (a & 4095) | (b & 4095) << 16;
    taps.high[i] =
        static_cast<int32_t>(static_cast<uint32_t>((a >> 12) & 0xFFFF) | static_cast<uint32_t>(b >> 12) << 16);
  }
}

}  // namespace

Taps make_taps(int in_size, int out_size) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = kSupport * filter_scale;
  const double step = 1.0 / filter_scale;
  const auto outputs = static_cast<std::size_t>(out_size);
  Taps taps;
  taps.stride = (static_cast<int>(std::ceil(support)) * 2 + 1 + 3) / 4 * 4;
  taps.first.resize(outputs);
  taps.count.resize(outputs);
  taps.weights.resize(outputs * static_cast<std::size_t>(taps.stride));
  std::vector<double> raw(static_cast<std::size_t>(taps.stride));
  for (std::size_t i = 0; i < outputs; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    // Cut off, as Pillow does: a center near 0 makes it negative.
    const int begin = std::max(0, static_cast<int>(center - support + 0.5));  // NOLINT(bugprone-incorrect-roundings)
    const int end =
        std::min(in_size, static_cast<int>(center + support + 0.5));  // NOLINT(bugprone-incorrect-roundings)
    taps.first[i] = begin;
    taps.count[i] = end - begin;
    double sum = 0.0;
    for (int t = 0; t < end - begin; ++t) {
      raw[static_cast<std::size_t>(t)] = bicubic((t + begin - center + 0.5) * step);
      sum += raw[static_cast<std::size_t>(t)];
    }
    int32_t* weights = taps.weights.data() + i * static_cast<std::size_t>(taps.stride);
    for (int t = 0; t < end - begin; ++t) {
      const double weight = raw[static_cast<std::size_t>(t)];
      weights[t] = to_fixed(sum != 0.0 ? weight / sum : weight);
    }
  }
  split_weights(taps);
  return taps;
}

}  // namespace resize_passes

namespace {

using resize_passes::Taps;

Image resize_rows(const Image& image, int width) {
  const Taps taps = resize_passes::make_taps(image.width(), width);
  const auto pass = resize_passes::has_avx2() ? resize_passes::horizontal_avx2 : resize_passes::horizontal_plain;
  std::vector<uint8_t> padded(image.row_bytes() + resize_passes::kRowSlack);
  Image out(width, image.height());
  for (int y = 0; y < image.height(); ++y) {
    std::memcpy(padded.data(), image.row(y), image.row_bytes());
    pass(taps, padded.data(), out.row(y));
  }
  return out;
}

Image resize_columns(const Image& image, int height) {
  const Taps taps = resize_passes::make_taps(image.height(), height);
  const auto pass = resize_passes::has_avx2() ? resize_passes::vertical_avx2 : resize_passes::vertical_plain;
  Image out(image.width(), height);
  for (int y = 0; y < height; ++y) pass(taps, y, image.row(0), image.row_bytes(), image.row_bytes(), out.row(y));
  return out;
}

// See resize.h.
bool columns_first(const Image& image, int width, int height) {
  return image.height() > height && image.height() - height > 2 * (int64_t{image.width()} - width);
}

}  // namespace

Image resize_bicubic(const Image& image, int width, int height) {
  CHECK(image.width() >= 1 && width >= 1 && height >= 1);
  if (width == image.width()) {
    if (height != image.height()) return resize_columns(image, height);
    Image copy(width, height);
    std::memcpy(copy.row(0), image.row(0), image.size_bytes());
    return copy;
  }
  if (height == image.height()) return resize_rows(image, width);
  if (columns_first(image, width, height)) return resize_rows(resize_columns(image, height), width);
  return resize_columns(resize_rows(image, width), height);
}

}  // namespace millrace
