// WebP by libwebp: still pictures, and the first frame of animations on a transparent black canvas.
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>

#include "media/codecs.h"
#include "media/orientation.h"

namespace millrace::codecs {
namespace {

struct FreeDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
using Demuxer = std::unique_ptr<WebPDemuxer, FreeDemuxer>;

struct FrameIterator {
  WebPIterator at{};

  FrameIterator() = default;
  FrameIterator(const FrameIterator&) = delete;
  FrameIterator& operator=(const FrameIterator&) = delete;
  ~FrameIterator() { WebPDemuxReleaseIterator(&at); }
};

Result<Demuxer> open(Bytes bytes) {
  const WebPData data{bytes.data(), bytes.size()};
  Demuxer demuxer(WebPDemux(&data));
  if (demuxer == nullptr) return invalid_argument("its {} bytes are truncated or corrupt", bytes.size());
  return demuxer;
}

// The payload, inside the bytes that were given to the demuxer; empty: no such chunk.
Bytes find_chunk(const WebPDemuxer* demuxer, const char* type) {
  WebPChunkIterator chunk{};
  if (WebPDemuxGetChunk(demuxer, type, 1, &chunk) == 0) return {};
  const Bytes payload(chunk.chunk.bytes, chunk.chunk.size);
  WebPDemuxReleaseChunkIterator(&chunk);
  return payload;
}

}  // namespace

Result<ImageInfo> read_webp_header(Bytes bytes) {
  ASSIGN_OR_RETURN(const Demuxer demuxer, open(bytes));
  ImageInfo info;
  info.width = static_cast<int>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH));
  info.height = static_cast<int>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT));
  info.animated = WebPDemuxGetI(demuxer.get(), WEBP_FF_FRAME_COUNT) > 1;
  info.orientation = choose_orientation(exif_orientation(find_chunk(demuxer.get(), "EXIF")),
                                        xmp_orientation(find_chunk(demuxer.get(), "XMP ")));
  return info;
}

Result<Image> decode_webp(Bytes bytes, const ImageInfo& info) {
  ASSIGN_OR_RETURN(const Demuxer demuxer, open(bytes));
  FrameIterator frame;
  if (WebPDemuxGetFrame(demuxer.get(), 1, &frame.at) == 0 || frame.at.complete == 0) {
    return invalid_argument("it has no complete frame; wanted at least one");
  }
  const WebPIterator& at = frame.at;
  if (at.x_offset < 0 || at.y_offset < 0 || at.width > info.width - at.x_offset ||
      at.height > info.height - at.y_offset) {
    return invalid_argument("its frame of {} x {} at {}, {} leaves the canvas of {} x {}", at.width, at.height,
                            at.x_offset, at.y_offset, info.width, info.height);
  }
  Image image(info.width, info.height);
  if (at.width != info.width || at.height != info.height) std::memset(image.row(0), 0, image.size_bytes());
  uint8_t* const target = image.row(at.y_offset) + 3 * at.x_offset;
  const std::size_t available = image.size_bytes() - static_cast<std::size_t>(target - image.row(0));
  if (WebPDecodeRGBInto(at.fragment.bytes, at.fragment.size, target, available, static_cast<int>(image.row_bytes())) ==
      nullptr) {
    return invalid_argument("the data of its first frame is truncated or corrupt");
  }
  return image;
}

}  // namespace millrace::codecs
