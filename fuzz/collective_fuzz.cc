// What the other ranks and the trainer's store send: replies of a TCPStore, records and address lists, and the stream
// of a connection of gloo. The first byte chooses, the second one the dialect or the size of the group.
#include <sys/socket.h>

#include <cstdint>

#include "collective/gloo_group.h"
#include "collective/gloo_record.h"
#include "collective/limits.h"
#include "collective/little_endian.h"
#include "collective/tcp_store_client.h"

namespace {

using namespace millrace;
using namespace millrace::collective;

WaitLimit limit() { return {Clock::now() + std::chrono::seconds(5), nullptr}; }

// A connection on which `bytes` have arrived and no more will; `other` keeps it open for what is sent.
StreamSocket arrived(std::string_view bytes, StreamSocket& other) {
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
  other = StreamSocket(fds[0]);
  const bool sent = other.write_all(bytes_of(bytes), limit()).ok();
  CHECK(sent);
  shutdown(other.fd(), SHUT_WR);
  return StreamSocket(fds[1]);
}

void store(std::string_view bytes, StoreDialect dialect) {
  StreamSocket other;
  TcpStoreClient client(arrived(bytes, other), dialect);
  (void)client.add("init/", 1, limit());
  while (true) {
    const Result<std::string> value = client.get("/key", limit());
    if (!value.ok()) return;
    CHECK(value->size() <= kMaxStoreValueBytes);
  }
}

void records(std::string_view bytes, int world) {
  if (const auto record = decode_rank_record(bytes, world); record.ok()) {
    CHECK(encode_rank_record(*record).size() == bytes.size());
    CHECK(record->pair_ids.size() == static_cast<std::size_t>(world));
    (void)connects_to(record->listener, record->listener);
    (void)record->listener.to_string();
  }
  for (int peer = 0; peer < world; ++peer) {
    if (peer != 1) (void)decode_address_list(bytes, world, 1, peer);
  }
}

void broadcasts(std::string_view bytes, uint64_t length) {
  StreamSocket other;
  std::vector<StreamSocket> sockets(2);
  sockets[0] = arrived(bytes, other);
  GlooGroup group(1, std::move(sockets), std::make_shared<CancelSignal>());
  Status status;
  while (status.ok()) {
    uint64_t seen = 0;
    status = group.receive_broadcast(0, length, {limit().deadline}, [&](std::span<const std::byte> slice) {
      seen += slice.size();
      CHECK(seen <= length);
      return ok_status();
    });
    CHECK(!status.ok() || seen == length);
    if (length == 0 && bytes.size() > 4096) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size < 2 || size > 60'000) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 2), size - 2);
  switch (data[0] % 3) {
    case 0:
      store(bytes, data[1] % 2 == 0 ? StoreDialect::kTorch1 : StoreDialect::kTorch2);
      break;
    case 1:
      records(bytes, 2 + data[1] % 8);
      break;
    default:
      broadcasts(bytes, data[1]);
  }
  return 0;
}
