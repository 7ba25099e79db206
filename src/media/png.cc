// PNG by libpng. The library reports an error by a longjmp, which skips destructors: so whatever has one lives outside
// of the functions that call setjmp, and those hold plain values only.
#include <png.h>

#include <cstdio>
#include <cstring>

#include "media/codecs.h"
#include "media/orientation.h"

namespace millrace::codecs {
namespace {

constexpr std::size_t kSignatureBytes = 8;
constexpr std::size_t kChunkOverhead = 12;             // length, type, checksum
constexpr png_alloc_size_t kMaxChunkBytes = 1u << 20;  // that libpng may hold: a palette at most
constexpr std::string_view kXmpKey("XML:com.adobe.xmp\0", 18);

uint32_t read_u32(Bytes bytes, std::size_t at) {
  return uint32_t{bytes[at]} << 24 | uint32_t{bytes[at + 1]} << 16 | uint32_t{bytes[at + 2]} << 8 | bytes[at + 3];
}

// The text of an iTXt chunk that holds XMP uncompressed; empty: another one.
Bytes xmp_of(Bytes chunk) {
  if (chunk.size() < kXmpKey.size() + 2 || std::memcmp(chunk.data(), kXmpKey.data(), kXmpKey.size()) != 0) return {};
  if (chunk[kXmpKey.size()] != 0) return {};
  Bytes rest = chunk.subspan(kXmpKey.size() + 2);
  for (int field = 0; field < 2; ++field) {  // language, translated key
    const void* end = rest.empty() ? nullptr : std::memchr(rest.data(), 0, rest.size());
    if (end == nullptr) return {};
    rest = rest.subspan(static_cast<std::size_t>(static_cast<const uint8_t*>(end) - rest.data()) + 1);
  }
  return rest;
}

struct Metadata {
  bool has_data = false;
  uint32_t frames = 1;
  Bytes exif;
  Bytes xmp;

  // False: what follows belongs to a later frame.
  bool add(std::string_view type, Bytes chunk) {
    if (type == "IDAT") has_data = true;
    if (type == "acTL" && !has_data && chunk.size() >= 8) frames = read_u32(chunk, 0);
    if (type == "fcTL" && has_data && frames > 1) return false;
    if (type == "eXIf") exif = chunk;
    if (type == "iTXt") {
      if (const Bytes found = xmp_of(chunk); !found.empty()) xmp = found;
    }
    return type != "IEND";
  }
};

struct Decoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes rest;
  char message[128] = "";

  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { png_destroy_read_struct(&png, &info, nullptr); }
};

void fail(png_structp png, png_const_charp text) {
  auto* decoder = static_cast<Decoder*>(png_get_error_ptr(png));
  std::snprintf(decoder->message, sizeof decoder->message, "%s", text);
  png_longjmp(png, 1);
}

void read_bytes(png_structp png, png_bytep out, std::size_t count) {
  auto* decoder = static_cast<Decoder*>(png_get_io_ptr(png));
  if (count > decoder->rest.size()) png_error(png, "it is truncated: its bytes end inside a chunk");
  std::memcpy(out, decoder->rest.data(), count);
  decoder->rest = decoder->rest.subspan(count);
}

bool is_gray_16(const Decoder& decoder) {
  return png_get_bit_depth(decoder.png, decoder.info) == 16 &&
         png_get_color_type(decoder.png, decoder.info) == PNG_COLOR_TYPE_GRAY;
}

// Rows of 8-bit RGB, or of 16-bit grey.
void choose_conversions(Decoder& decoder) {
  png_structp png = decoder.png;
  const int color = png_get_color_type(png, decoder.info);
  if (is_gray_16(decoder)) return;
  png_set_strip_16(png);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png);
  png_set_strip_alpha(png);
}

// False: decoder.message states why.
bool start(Decoder& decoder, const ImageInfo& info) {
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, fail, [](png_structp, png_const_charp) {});
  if (decoder.png == nullptr) return false;
  png_structp png = decoder.png;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  decoder.info = png_create_info_struct(png);
  if (decoder.info == nullptr) return false;
  png_set_user_limits(png, static_cast<png_uint_32>(info.width), static_cast<png_uint_32>(info.height));
  png_set_chunk_malloc_max(png, kMaxChunkBytes);
  png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);  // profiles, gamma, texts
  png_set_read_fn(png, &decoder, read_bytes);
  png_read_info(png, decoder.info);
  choose_conversions(decoder);
  return true;
}

bool read_rows(Decoder& decoder, Image& image) {
  png_structp png = decoder.png;
  if (setjmp(png_jmpbuf(png)) != 0) return false;
  const int passes = png_set_interlace_handling(png);
  png_read_update_info(png, decoder.info);
  if (png_get_rowbytes(png, decoder.info) > image.row_bytes()) png_error(png, "its rows are not those of its header");
  for (int pass = 0; pass < passes; ++pass) {
    for (int y = 0; y < image.height(); ++y) png_read_row(png, image.row(y), nullptr);
  }
  return true;
}

// In place, from the last pixel: 16-bit grey takes two of the three bytes. Pillow's rule for "I;16" to "RGB".
void gray_16_to_rgb(uint8_t* row, int width) {
  for (int x = width - 1; x >= 0; --x) {
    const uint8_t value = row[2 * x] != 0 ? 255 : row[2 * x + 1];
    std::memset(row + 3 * x, value, 3);
  }
}

}  // namespace

Result<ImageInfo> read_png_header(Bytes bytes) {
  const std::size_t data = kSignatureBytes + 8;
  if (bytes.size() < data + 13) return invalid_argument("it is truncated: {} bytes end in its header", bytes.size());
  if (std::memcmp(bytes.data() + kSignatureBytes + 4, "IHDR", 4) != 0 || read_u32(bytes, kSignatureBytes) != 13) {
    return invalid_argument("its first chunk is no header; wanted IHDR of 13 bytes");
  }
  const uint32_t width = read_u32(bytes, data);
  const uint32_t height = read_u32(bytes, data + 4);
  if (width > PNG_UINT_31_MAX || height > PNG_UINT_31_MAX) {
    return invalid_argument("the image is {} x {}; wanted at most {} on each edge", width, height, PNG_UINT_31_MAX);
  }
  Metadata metadata;
  for (std::size_t at = kSignatureBytes; at + kChunkOverhead <= bytes.size();) {
    const std::size_t length = read_u32(bytes, at);
    if (length > bytes.size() - at - kChunkOverhead) break;
    const std::string_view type(reinterpret_cast<const char*>(bytes.data() + at + 4), 4);
    if (!metadata.add(type, bytes.subspan(at + 8, length))) break;
    at += length + kChunkOverhead;
  }
  ImageInfo info;
  info.width = static_cast<int>(width);
  info.height = static_cast<int>(height);
  info.animated = metadata.frames > 1;
  info.orientation = choose_orientation(exif_orientation(metadata.exif), xmp_orientation(metadata.xmp));
  return info;
}

Result<Image> decode_png(Bytes bytes, const ImageInfo& info) {
  Decoder decoder;
  decoder.rest = bytes;
  Image image(info.width, info.height);
  if (!start(decoder, info) || !read_rows(decoder, image)) return invalid_argument("{}", decoder.message);
  if (is_gray_16(decoder)) {
    for (int y = 0; y < image.height(); ++y) gray_16_to_rgb(image.row(y), image.width());
  }
  return image;
}

}  // namespace millrace::codecs
