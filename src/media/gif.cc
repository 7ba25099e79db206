// The first frame of a GIF file, on the logical screen, with the pixels of Pillow: colours of the frame's palette, and
// around a smaller frame the transparent index, else index 0. A reader of our own: the format is small, giflib reads
// all frames or none of the screen, and Pillow's rules for short palettes are kept here.
#include <cstring>
#include <string>
#include <vector>

#include "media/codecs.h"
#include "media/gif_data.h"

namespace millrace::codecs {
namespace {

struct Frame {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
  bool interlaced = false;
  Bytes palette;        // RGB triples; empty: grey
  int transparent = 0;  // what fills the rest of the screen
  int code_bits = 0;
  std::size_t data = 0;  // offset of the first data block
};

struct Parsed {
  int width = 0;
  int height = 0;
  Frame first;
  bool animated = false;
};

int read_u16(Bytes bytes, std::size_t at) { return bytes[at] | bytes[at + 1] << 8; }

Status truncated(Bytes bytes, std::string_view where) {
  return invalid_argument("it is truncated: {} bytes end in its {}", bytes.size(), where);
}

// A palette whose entries are their own numbers stands for grey, also for the indices past its end.
Bytes colors_or_gray(Bytes palette) {
  for (std::size_t i = 0; i < palette.size(); ++i) {
    if (palette[i] != i / 3) return palette;
  }
  return {};
}

Result<Bytes> read_palette(GifCursor& cursor, int flags, Bytes bytes) {
  const auto palette = cursor.take(std::size_t{3} << ((flags & 7) + 1));
  if (!palette) return truncated(bytes, "palette");
  return colors_or_gray(*palette);
}

// From after the separator to the data. `palette` is the global one.
Result<Frame> read_frame(GifCursor& cursor, Bytes palette, int transparent, Bytes bytes) {
  Frame frame{.palette = palette, .transparent = transparent};
  const auto head = cursor.take(9);
  if (!head) return truncated(bytes, "frame header");
  frame.x = read_u16(*head, 0);
  frame.y = read_u16(*head, 2);
  frame.width = read_u16(*head, 4);
  frame.height = read_u16(*head, 6);
  frame.interlaced = ((*head)[8] & 0x40) != 0;
  if ((*head)[8] & 0x80) {
    ASSIGN_OR_RETURN(frame.palette, read_palette(cursor, (*head)[8], bytes));
  }
  const auto bits = cursor.byte();
  if (!bits) return truncated(bytes, "frame header");
  if (*bits < 1 || *bits >= kMaxGifCodeBits) {
    return invalid_argument("its codes begin with {} bits; wanted 1 to {}", *bits, kMaxGifCodeBits - 1);
  }
  frame.code_bits = *bits;
  frame.data = cursor.at();
  return frame;
}

// Moves past extensions to after the next frame's separator; false: there is none.
bool find_frame(GifCursor& cursor, int* transparent) {
  while (const auto kind = cursor.byte()) {
    if (*kind == ',') return true;
    if (*kind == ';') return false;
    if (*kind != '!') continue;
    const auto label = cursor.byte();
    if (!label) return false;
    const Bytes control = *label == 0xF9 ? cursor.block() : Bytes{};
    if (control.size() >= 4 && (control[0] & 1) != 0 && transparent != nullptr) *transparent = control[3];
    if (!cursor.skip_blocks()) return false;
  }
  return false;
}

Result<Parsed> parse(Bytes bytes) {
  GifCursor cursor(bytes, 6);
  const auto screen = cursor.take(7);
  if (!screen) return truncated(bytes, "header");
  Parsed out{.width = read_u16(*screen, 0), .height = read_u16(*screen, 2)};
  Bytes palette;
  if ((*screen)[4] & 0x80) {
    ASSIGN_OR_RETURN(palette, read_palette(cursor, (*screen)[4], bytes));
  }
  int transparent = 0;
  if (!find_frame(cursor, &transparent)) return invalid_argument("it has no frame; wanted at least one");
  ASSIGN_OR_RETURN(out.first, read_frame(cursor, palette, transparent, bytes));
  // A frame that leaves the screen makes it larger.
  out.width = std::max(out.width, out.first.x + out.first.width);
  out.height = std::max(out.height, out.first.y + out.first.height);
  out.animated = cursor.skip_blocks() && find_frame(cursor, nullptr);
  return out;
}

// The screen's row for each row of the data.
std::vector<int> row_sequence(int height, bool interlaced) {
  std::vector<int> rows;
  rows.reserve(static_cast<std::size_t>(height));
  if (!interlaced) {
    for (int y = 0; y < height; ++y) rows.push_back(y);
    return rows;
  }
  constexpr int kFirst[] = {0, 4, 2, 1};
  constexpr int kStep[] = {8, 8, 4, 2};
  for (int pass = 0; pass < 4; ++pass) {
    for (int y = kFirst[pass]; y < height; y += kStep[pass]) rows.push_back(y);
  }
  return rows;
}

void write_color(Bytes palette, int index, uint8_t* rgb) {
  const auto at = static_cast<std::size_t>(index) * 3;
  if (palette.empty()) {
    std::memset(rgb, index, 3);
  } else if (at < palette.size()) {
    std::memcpy(rgb, palette.data() + at, 3);
  } else {
    std::memset(rgb, 0, 3);
  }
}

}  // namespace

Result<ImageInfo> read_gif_header(Bytes bytes) {
  ASSIGN_OR_RETURN(const Parsed parsed, parse(bytes));
  ImageInfo info;
  info.width = parsed.width;
  info.height = parsed.height;
  info.animated = parsed.animated;
  return info;
}

Result<Image> decode_gif(Bytes bytes, const ImageInfo& info) {
  ASSIGN_OR_RETURN(const Parsed parsed, parse(bytes));
  const Frame& frame = parsed.first;
  std::vector<uint8_t> indices(static_cast<std::size_t>(frame.width) * static_cast<std::size_t>(frame.height));
  RETURN_IF_ERROR(decode_gif_data(bytes, frame.data, frame.code_bits, indices));
  Image image(info.width, info.height);
  if (frame.width != info.width || frame.height != info.height) {
    for (int x = 0; x < info.width; ++x) write_color(frame.palette, frame.transparent, image.row(0) + 3 * x);
    for (int y = 1; y < info.height; ++y) std::memcpy(image.row(y), image.row(0), image.row_bytes());
  }
  const uint8_t* from = indices.data();
  for (const int y : row_sequence(frame.height, frame.interlaced)) {
    uint8_t* to = image.row(frame.y + y) + 3 * frame.x;
    for (int x = 0; x < frame.width; ++x, to += 3) write_color(frame.palette, *from++, to);
  }
  return image;
}

}  // namespace millrace::codecs
