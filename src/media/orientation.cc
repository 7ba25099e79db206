#include "media/orientation.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace millrace {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;
constexpr std::size_t kEntryBytes = 12;
constexpr std::string_view kExifPrefix("Exif\0\0", 6);

bool starts_with(std::span<const uint8_t> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() && std::memcmp(bytes.data(), prefix.data(), prefix.size()) == 0;
}

struct TiffReader {
  std::span<const uint8_t> bytes;
  bool big_endian = false;

  // The caller checks that [offset, offset + width) lies inside.
  uint32_t read(std::size_t offset, int width) const {
    uint32_t value = 0;
    for (int i = 0; i < width; ++i) {
      const std::size_t at = offset + static_cast<std::size_t>(big_endian ? i : width - 1 - i);
      value = value << 8 | bytes[at];
    }
    return value;
  }

  // An entry's value where it is one integer; Pillow compares no other kind with 2 to 8.
  std::optional<int> integer(std::size_t entry) const {
    const uint32_t type = read(entry + 2, 2);
    if (read(entry + 4, 4) != 1) return std::nullopt;
    if (type == 3 || type == 8) return static_cast<int16_t>(read(entry + 8, 2));
    if (type == 4 || type == 9) return static_cast<int>(read(entry + 8, 4));
    return std::nullopt;
  }
};

}  // namespace

std::optional<int> exif_orientation(std::span<const uint8_t> exif) {
  for (int i = 0; i < 2 && starts_with(exif, kExifPrefix); ++i) exif = exif.subspan(kExifPrefix.size());
  TiffReader tiff{.bytes = exif};
  if (starts_with(exif, std::string_view("MM\0*", 4))) {
    tiff.big_endian = true;
  } else if (!starts_with(exif, std::string_view("II*\0", 4))) {
    return std::nullopt;
  }
  if (exif.size() < 8) return std::nullopt;
  const std::size_t directory = tiff.read(4, 4);
  if (directory > exif.size() || exif.size() - directory < 2) return std::nullopt;
  const uint32_t entries = tiff.read(directory, 2);
  std::optional<int> found;
  for (uint32_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (entry + kEntryBytes > exif.size()) break;
    if (tiff.read(entry, 2) == kOrientationTag) found = tiff.integer(entry);
  }
  return found;
}

std::optional<int> xmp_orientation(std::span<const uint8_t> xmp) {
  const std::string_view text(reinterpret_cast<const char*>(xmp.data()), xmp.size());
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = text.find(kName); at != std::string_view::npos; at = text.find(kName, at + 1)) {
    std::string_view rest = text.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return std::nullopt;
}

int choose_orientation(std::optional<int> exif, std::optional<int> xmp) {
  const int value = exif ? *exif : xmp.value_or(1);
  return value >= 1 && value <= 8 ? value : 1;
}

Image apply_orientation(Image image, int orientation) {
  if (orientation < 2 || orientation > 8) return image;
  const int w = image.width();
  const int h = image.height();
  const bool exchange = orientation >= 5;
  Image out(exchange ? h : w, exchange ? w : h);
  // Which source pixel the target's first pixel is, and the steps along a target row and a target column.
  const bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const auto stride = static_cast<std::ptrdiff_t>(image.row_bytes());
  const std::ptrdiff_t step_x = flip_x ? -3 : 3;
  const std::ptrdiff_t step_y = flip_y ? -stride : stride;
  const uint8_t* const first = image.row(flip_y ? h - 1 : 0) + (flip_x ? 3 * (w - 1) : 0);
  const std::ptrdiff_t along_row = exchange ? step_y : step_x;
  const std::ptrdiff_t along_column = exchange ? step_x : step_y;
  // In square tiles, so that a transposed read finds its cache lines again.
  constexpr int kTile = 32;
  for (int tile_y = 0; tile_y < out.height(); tile_y += kTile) {
    for (int tile_x = 0; tile_x < out.width(); tile_x += kTile) {
      const int end_x = std::min(tile_x + kTile, out.width());
      for (int y = tile_y; y < std::min(tile_y + kTile, out.height()); ++y) {
        const uint8_t* from = first + along_column * y + along_row * tile_x;
        uint8_t* to = out.row(y) + 3 * tile_x;
        for (int x = tile_x; x < end_x; ++x, from += along_row, to += 3) std::memcpy(to, from, 3);
      }
    }
  }
  return out;
}

}  // namespace millrace
