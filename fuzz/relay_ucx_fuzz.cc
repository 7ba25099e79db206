// What the session and the UCX relay read from peers and from options. The first byte chooses: 0: bytes as a frame's
// header; 1: sizes of parts, which both sides cut and lay out; else: the list of transports.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "relay/relay.h"
#include "relay/session/frame.h"
#include "relay/session/layout.h"
#include "relay/tcp/address.h"
#include "relay/ucx/transports.h"

namespace {

using namespace millrace;
using namespace millrace::session;
using namespace millrace::ucx;

void frame(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes) return;
  const auto head = bytes.first<kHeaderBytes>();
  const Result<Header> header = decode(head);
  if (!header.ok()) return;
  const HeaderBytes again = encode(*header);
  CHECK(std::memcmp(again.data(), head.data(), kHeaderBytes) == 0);
  CHECK(header->code <= static_cast<uint32_t>(StatusCode::kInternal));
  CHECK(header->length <= (header->type == FrameType::kData ? kMaxDataBytes : kMaxControlPayload));
}

// Each byte of each part is in one frame, in order; and no two parts stand in the same place.
void sizes(std::span<const std::byte> bytes) {
  std::vector<std::size_t> sizes;
  for (; bytes.size() >= 4 && sizes.size() < kMaxRelayParts; bytes = bytes.subspan(4)) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    sizes.push_back(size >> (size % 32));  // small ones as often as large ones
  }
  if (sizes.empty()) return;
  constexpr FrameRules kRules{.frame_bytes = 4u << 20, .packed_bytes = 64u << 10, .alone_bytes = 16u << 10};
  const Layout layout(sizes, kRules);
  std::vector<std::size_t> covered(sizes.size());
  for (std::size_t at = 0; at < layout.total();) {
    const std::size_t end = layout.frame_end(at);
    CHECK(end > at && end - at <= kRules.frame_bytes);
    const auto slices = layout.slices(at, end);
    CHECK(slices.size() == 1 || end - at <= kRules.packed_bytes);
    for (const Layout::Slice& slice : slices) {
      CHECK(slice.offset == covered[slice.part] && (!layout.alone(slice.part) || slices.size() == 1));
      covered[slice.part] += slice.size;
    }
    at = end;
  }
  CHECK(covered == sizes);
  std::size_t end = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    CHECK(layout.block_offset(i) % kBufferAlignment == 0 && layout.block_offset(i) >= end);
    end = layout.block_offset(i) + sizes[i];
  }
  CHECK(end <= layout.block_bytes());
}

void transports(const std::string& listen) {
  const Result<Transports> chosen = choose_transports(listen, nullptr, nullptr);
  if (!chosen.ok()) return;
  CHECK(chosen->tls.size() <= kMaxTransportsBytes + 4 && chosen->devices.size() <= kMaxTransportsBytes);
  CHECK(!chosen->tls.empty() && tcp::parse_host_port(chosen->ip).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  switch (data[0] % 3) {
    case 0:
      frame(bytes);
      break;
    case 1:
      sizes(bytes);
      break;
    default:
      transports(text);
  }
  return 0;
}
