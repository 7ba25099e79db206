// What the UCX relay reads from peers and from its options. The first byte chooses: 0: bytes as a frame's head, with
// the length of its payload in front; 1: sizes of parts, which both sides cut and lay out; 2: a peer's endpoint; 3: the
// list of transports.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "relay/relay.h"
#include "relay/ucx/frame.h"
#include "relay/ucx/layout.h"
#include "relay/ucx/transports.h"

namespace {

using namespace millrace;
using namespace millrace::ucx;

void frame(std::span<const std::byte> bytes) {
  uint32_t payload = 0;
  if (bytes.size() < sizeof payload) return;
  std::memcpy(&payload, bytes.data(), sizeof payload);
  const std::span<const std::byte> head = bytes.subspan(sizeof payload);
  const std::optional<Frame> frame = decode_frame(head, payload);
  if (!frame) return;
  CHECK(head.size() == sizeof(Frame) && std::memcmp(&*frame, head.data(), sizeof(Frame)) == 0);
  CHECK(frame->bytes == payload && payload <= kSegmentBytes);
  CHECK(frame->code <= static_cast<uint8_t>(StatusCode::kInternal));
  CHECK(frame->type == FrameType::kData || payload <= std::max(kMaxKeyBytes, kMaxErrorText));
}

// Each byte of each part is in one segment, in order; and no two parts stand in the same place.
void sizes(std::span<const std::byte> bytes) {
  std::vector<std::size_t> sizes;
  for (; bytes.size() >= 4 && sizes.size() < kMaxRelayParts; bytes = bytes.subspan(4)) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    sizes.push_back(size >> (size % 32));  // small ones as often as large ones
  }
  if (sizes.empty()) return;
  std::size_t part = 0, at = 0;
  for (const Segment& segment : cut(sizes)) {
    CHECK(segment.bytes <= kSegmentBytes && segment.first == part && segment.count >= 1);
    CHECK(segment.count == 1 || segment.bytes <= kRunBytes);
    if (segment.count > 1) {
      CHECK(at == 0 && segment.offset == 0 && segment.first + segment.count <= sizes.size());
      std::size_t together = 0;
      for (uint32_t i = 0; i < segment.count; ++i) together += sizes[part++];
      CHECK(together == segment.bytes);
      continue;
    }
    CHECK(segment.offset == at && segment.bytes <= sizes[part] - at);
    at += segment.bytes;
    if (at == sizes[part]) ++part, at = 0;
  }
  CHECK(part == sizes.size() && at == 0);
  const Layout layout = lay_out(sizes);
  std::size_t end = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CHECK(layout.offsets[i] % kAlignment == 0 && layout.offsets[i] >= end);
    end = layout.offsets[i] + sizes[i];
  }
  CHECK(end <= layout.bytes);
}

void endpoint(const std::string& text) {
  const Result<sockaddr_storage> address = parse_endpoint(text);
  if (!address.ok()) return;
  CHECK(text.size() <= kMaxEndpointBytes && text.find('\0') == std::string::npos);
  const Result<sockaddr_storage> again = parse_endpoint(endpoint_text(*address));
  CHECK(again.ok() && std::memcmp(&*again, &*address, sizeof *address) == 0);
  CHECK(endpoint_bytes(*address) <= sizeof *address);
}

void transports(const std::string& listen) {
  const Result<Transports> chosen = choose_transports(listen, nullptr, nullptr);
  if (!chosen.ok()) return;
  CHECK(chosen->tls.size() <= kMaxTransportsBytes + 4 && chosen->devices.size() <= kMaxTransportsBytes);
  CHECK(!chosen->tls.empty() && parse_endpoint(chosen->ip).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  switch (data[0] % 4) {
    case 0:
      frame(bytes);
      break;
    case 1:
      sizes(bytes);
      break;
    case 2:
      endpoint(text);
      break;
    default:
      transports(text);
  }
  return 0;
}
