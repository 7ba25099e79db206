// The TCP relay's frames from a hostile peer. The first byte chooses: 0: bytes as a header, and where they pass,
// encoded again they are the same; 1: bytes as addresses; else: bytes as a stream of frames through a Connection, over
// a socket pair, whose user takes everything and checks that it is given what the header said, no more.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "relay/tcp/address.h"
#include "relay/tcp/connection.h"
#include "relay/tcp/handshake.h"

namespace {

using namespace millrace;
using namespace millrace::tcp;

class Taker : public LinkUser {
 public:
  Status on_frame(Link&, const Header& header, std::span<const std::byte> payload) override {
    CHECK(payload.size() == header.length && payload.size() <= kMaxControlPayload);
    return ok_status();
  }
  void on_ready(Link&) override {}
  Status data_begin(Link&, const Header& header) override {
    CHECK(header.length <= kFrameBytes);
    left_ = header.length;
    return ok_status();
  }
  std::size_t data_space(Link&, std::span<iovec> out) override {
    out[0] = {memory_.data(), std::min(left_, memory_.size())};
    return 1;
  }
  void data_received(Link&, std::size_t bytes) override {
    CHECK(bytes <= left_);
    left_ -= bytes;
  }
  Status data_end(Link&, uint64_t) override {
    CHECK(left_ == 0);
    return ok_status();
  }
  bool busy(const Link&) const override { return false; }
  void on_lost(Link&, const Status&) override {}

 private:
  std::size_t left_ = 0;
  std::array<std::byte, 1000> memory_{};
};

void stream(std::span<const std::byte> bytes, bool ready) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Taker taker;
  const ConnectionConfig config{
      taker, {.instance = 7, .address = "127.0.0.1:1#0000000000000007", .secret = {}}, 1'000, 1'000};
  std::vector<uint64_t> output_pending;
  Connection c(1, fds[1], ready ? Phase::kReady : Phase::kHandshake, config, output_pending, 0);
  int64_t now_ms = 1;
  while (!bytes.empty()) {
    const std::size_t some = std::min<std::size_t>(bytes.size(), 700);
    const ssize_t sent = send(fds[0], bytes.data(), some, MSG_NOSIGNAL);
    if (sent <= 0) break;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
    if (!c.pump_in(++now_ms).ok() || !c.pump_out(now_ms, true).ok()) break;
  }
  (void)c.pump_in(++now_ms);
  close(fds[0]);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  if (data[0] == 0 && bytes.size() >= kHeaderBytes) {
    const auto head = bytes.first<kHeaderBytes>();
    const Result<Header> header = decode(head);
    if (header.ok()) {
      const HeaderBytes again = encode(*header);
      CHECK(std::memcmp(again.data(), head.data(), kHeaderBytes) == 0);
    }
  } else if (data[0] == 1) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const auto address = parse_host_port(text); address.ok()) {
      const auto again = parse_host_port(address->to_string());
      CHECK(again.ok() && std::memcmp(&again->storage, &address->storage, sizeof address->storage) == 0);
      CHECK(text.find('\0') == std::string_view::npos);
    }
    if (const auto instance = parse_instance(text); instance.ok()) {
      CHECK(parse_instance(format_instance(instance->socket, instance->instance))->instance == instance->instance);
    }
  } else {
    stream(bytes, data[0] % 2 == 0);
  }
  return 0;
}
