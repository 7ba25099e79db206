// JPEG by libjpeg-turbo. The library reports an error by a longjmp, which skips destructors: so whatever has one lives
// outside of the functions that call setjmp, and those hold plain values only.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "media/codecs.h"
#include "media/orientation.h"

extern "C" {
#include <jpeglib.h>
}

namespace millrace::codecs {
namespace {

constexpr std::string_view kExif("Exif\0\0", 6);
constexpr std::string_view kXmp("http://ns.adobe.com/xap/1.0/\0", 29);

bool begins(Bytes bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() && std::memcmp(bytes.data(), prefix.data(), prefix.size()) == 0;
}

struct Metadata {
  std::vector<uint8_t> exif;  // of all its segments, joined as Pillow joins them
  Bytes xmp;

  void add(Bytes segment) {
    if (begins(segment, kExif)) {
      const Bytes block = exif.empty() ? segment : segment.subspan(kExif.size());
      exif.insert(exif.end(), block.begin(), block.end());
    } else if (begins(segment, kXmp)) {
      xmp = segment.subspan(kXmp.size());
    }
  }
  int orientation() const {
    return choose_orientation(exif_orientation(exif), xmp.empty() ? std::nullopt : xmp_orientation(xmp));
  }
};

bool is_frame_header(int marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}
bool has_no_length(int marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8); }

Status read_frame_header(Bytes segment, ImageInfo& info) {
  if (segment.size() < 6) return invalid_argument("its frame header has {} bytes; wanted at least 6", segment.size());
  const int precision = segment[0];
  const int components = segment[5];
  if (precision != 8) return error(StatusCode::kUnsupported, "it has {} bits a sample; wanted 8", precision);
  if (components != 1 && components != 3 && components != 4) {
    return error(StatusCode::kUnsupported, "it has {} components; wanted 1, 3 or 4", components);
  }
  info.height = segment[1] << 8 | segment[2];
  info.width = segment[3] << 8 | segment[4];
  return ok_status();
}

struct Decoder {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_source_mgr source{};
  jpeg_progress_mgr progress{};
  std::jmp_buf on_error{};
  char message[JMSG_LENGTH_MAX] = "";

  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { jpeg_destroy_decompress(&jpeg); }
};

Decoder& decoder_of(j_common_ptr jpeg) { return *static_cast<Decoder*>(jpeg->client_data); }

[[noreturn]] void fail(j_common_ptr jpeg) {
  Decoder& decoder = decoder_of(jpeg);
  (*jpeg->err->format_message)(jpeg, decoder.message);
  std::longjmp(decoder.on_error, 1);
}

[[noreturn]] void fail_with(j_common_ptr jpeg, const char* message) {
  Decoder& decoder = decoder_of(jpeg);
  std::snprintf(decoder.message, sizeof decoder.message, "%s", message);
  std::longjmp(decoder.on_error, 1);
}

// Where the bytes are used up: libjpeg's own source invents an end of image and fills the rest with grey.
boolean fail_truncated(j_decompress_ptr jpeg) {
  fail_with(reinterpret_cast<j_common_ptr>(jpeg), "it is truncated; wanted an end-of-image marker");
}

void skip_bytes(j_decompress_ptr jpeg, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > jpeg->src->bytes_in_buffer) fail_truncated(jpeg);
  jpeg->src->next_input_byte += count;
  jpeg->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void check_scans(j_common_ptr jpeg) {
  const int scan = reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number;
  if (scan <= kMaxJpegScans) return;
  Decoder& decoder = decoder_of(jpeg);
  std::snprintf(decoder.message, sizeof decoder.message, "it has a scan %d; wanted at most %d", scan, kMaxJpegScans);
  std::longjmp(decoder.on_error, 1);
}

void set_up(Decoder& decoder, Bytes bytes) {
  jpeg_decompress_struct& jpeg = decoder.jpeg;
  jpeg.err = jpeg_std_error(&decoder.errors);
  jpeg.client_data = &decoder;
  decoder.errors.error_exit = fail;
  decoder.errors.output_message = [](j_common_ptr) {};  // warnings are Pillow's silence too
  jpeg_create_decompress(&jpeg);
  jpeg.client_data = &decoder;
  decoder.progress.progress_monitor = check_scans;
  jpeg.progress = &decoder.progress;
  decoder.source.next_input_byte = bytes.data();
  decoder.source.bytes_in_buffer = bytes.size();
  decoder.source.init_source = [](j_decompress_ptr) {};
  decoder.source.fill_input_buffer = fail_truncated;
  decoder.source.skip_input_data = skip_bytes;
  decoder.source.resync_to_restart = jpeg_resync_to_restart;
  decoder.source.term_source = [](j_decompress_ptr) {};
  jpeg.src = &decoder.source;
}

// False: decoder.message states why. The size is compared before the library allocates by it.
bool start(Decoder& decoder, Bytes bytes, int width, int height) {
  if (setjmp(decoder.on_error) != 0) return false;
  set_up(decoder, bytes);
  jpeg_decompress_struct& jpeg = decoder.jpeg;
  jpeg_read_header(&jpeg, TRUE);
  if (static_cast<int>(jpeg.image_width) != width || static_cast<int>(jpeg.image_height) != height) {
    std::snprintf(decoder.message, sizeof decoder.message, "its data is %u x %u; wanted %d x %d, as its header has it",
                  jpeg.image_width, jpeg.image_height, width, height);
    return false;
  }
  jpeg.out_color_space = jpeg.num_components == 4 ? JCS_CMYK : JCS_RGB;
  jpeg.dct_method = JDCT_ISLOW;
  jpeg.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&jpeg);
  return true;
}

uint8_t multiply_255(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

// Pillow's rule for files of four components: stored inverted, then R = (255 - K) - C * (255 - K) / 255.
void inverted_cmyk_to_rgb(const uint8_t* cmyk, int width, uint8_t* rgb) {
  for (int x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(light - multiply_255(255 - cmyk[c], light));
  }
}

// `scratch` is one row of four components, where there are four.
bool read_rows(Decoder& decoder, Image& image, uint8_t* scratch) {
  if (setjmp(decoder.on_error) != 0) return false;
  jpeg_decompress_struct& jpeg = decoder.jpeg;
  while (jpeg.output_scanline < jpeg.output_height) {
    const int y = static_cast<int>(jpeg.output_scanline);
    if (scratch != nullptr) {
      jpeg_read_scanlines(&jpeg, &scratch, 1);
      inverted_cmyk_to_rgb(scratch, image.width(), image.row(y));
    } else {
      JSAMPROW rows[4];
      const int count = std::min(4, image.height() - y);
      for (int i = 0; i < count; ++i) rows[i] = image.row(y + i);
      jpeg_read_scanlines(&jpeg, rows, static_cast<JDIMENSION>(count));
    }
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

}  // namespace

Result<ImageInfo> read_jpeg_header(Bytes bytes) {
  ImageInfo info;
  Metadata metadata;
  std::size_t at = 2;
  while (at + 4 <= bytes.size()) {
    const int marker = bytes[at + 1];
    if (bytes[at] != 0xFF || marker == 0xFF || marker == 0x00) {  // fill bytes, or rubbish that libjpeg skips too
      ++at;
      continue;
    }
    if (has_no_length(marker)) {
      at += 2;
      continue;
    }
    const std::size_t length = static_cast<std::size_t>(bytes[at + 2]) << 8 | bytes[at + 3];
    if (length < 2 || length > bytes.size() - at - 2) break;
    const Bytes segment = bytes.subspan(at + 4, length - 2);
    if (marker == 0xE1) metadata.add(segment);
    if (is_frame_header(marker)) RETURN_IF_ERROR(read_frame_header(segment, info));
    if (marker == 0xDA || marker == 0xD9) {
      if (info.width == 0) return invalid_argument("it has no frame header with a width before its image data");
      info.orientation = metadata.orientation();
      return info;
    }
    at += 2 + length;
  }
  return invalid_argument("it is truncated: {} bytes end before the image data", bytes.size());
}

Result<Image> decode_jpeg(Bytes bytes, const ImageInfo& info) {
  Decoder decoder;
  if (!start(decoder, bytes, info.width, info.height)) return invalid_argument("{}", decoder.message);
  Image image(info.width, info.height);
  std::vector<uint8_t> scratch;
  if (decoder.jpeg.out_color_space == JCS_CMYK) scratch.resize(static_cast<std::size_t>(info.width) * 4);
  if (!read_rows(decoder, image, scratch.empty() ? nullptr : scratch.data())) {
    return invalid_argument("{}", decoder.message);
  }
  return image;
}

}  // namespace millrace::codecs
