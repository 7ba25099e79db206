// What a picture costs between its file and the vision tower, on one core: decoding, resizing, patches.
//
//   media_bench FILE [--max-pixels N] [--rounds N]
//
// Prints milliseconds, medians of the rounds, as JSON. bench/media_peer.py prints the same of Pillow and numpy.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "media/image.h"
#include "media/patches.h"
#include "media/resize.h"

namespace {

using namespace millrace;
using Clock = std::chrono::steady_clock;

struct Times {
  std::vector<double> decode, resize, patches, all;
};

double ms(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const std::vector<uint8_t>& file, const PatchConfig& config, Times& times) {
  const auto begin = Clock::now();
  const Image image = decode_image(file).value();
  const auto decoded = Clock::now();
  const PatchGrid grid = patch_grid({image.width(), image.height()}, config).value();
  const Image resized = resize_bicubic(image, grid.w * config.patch_size, grid.h * config.patch_size);
  const auto brought = Clock::now();
  PatchConfig as_it_is = config;
  as_it_is.resize = false;
  const Patches patches = make_patches(resized, as_it_is).value();
  const auto end = Clock::now();
  if (patches.grid != grid) std::abort();
  times.decode.push_back(ms(decoded - begin));
  times.resize.push_back(ms(brought - decoded));
  times.patches.push_back(ms(end - brought));
  times.all.push_back(ms(end - begin));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty() || words.size() % 2 == 0) {
    fmt::print(stderr, "usage: media_bench FILE [--max-pixels N] [--rounds N]\n");
    return 2;
  }
  PatchConfig config;
  int rounds = 5;
  for (std::size_t i = 1; i < words.size(); i += 2) {
    if (words[i] == "--max-pixels") config.max_pixels = std::atoll(words[i + 1].c_str());
    if (words[i] == "--rounds") rounds = std::max(1, std::atoi(words[i + 1].c_str()));
  }
  std::ifstream in(words[0], std::ios::binary);
  const std::vector<uint8_t> file{std::istreambuf_iterator<char>(in), {}};
  Times times;
  for (int i = 0; i < rounds; ++i) measure(file, config, times);
  fmt::print("{{\"decode\": {:.1f}, \"resize\": {:.1f}, \"patches\": {:.1f}, \"all\": {:.1f}}}\n", median(times.decode),
             median(times.resize), median(times.patches), median(times.all));
}
