#include "collective/tcp_store_client.h"

#include <poll.h>

#include <random>
#include <vector>

#include "collective/limits.h"
#include "collective/little_endian.h"

namespace millrace::collective {
namespace {

// Operations as PyTorch 1.13 numbers them; from 2.2 on each is one higher, and 0 is VALIDATE.
constexpr int kSet = 0, kGet = 2, kAdd = 3, kWait = 5;
constexpr char kValidate = 0, kPing = 13;
constexpr uint32_t kMagic = 0x3C85F7CE;
constexpr std::size_t kNonceBytes = 4;
constexpr uint8_t kStopWaiting = 0;

void append_bytes(std::string& out, std::string_view bytes) {
  append_int<uint64_t>(out, bytes.size());
  out += bytes;
}

template <typename T>
Result<T> read_reply(StreamSocket& socket, const WaitLimit& limit) {
  std::string bytes(sizeof(T), '\0');
  RETURN_IF_ERROR(socket.read_all(bytes_of(bytes), limit));
  return read_int<T>(bytes);
}

// One attempt at one address, in the newer dialect. ok and not open: the store is an older one.
Result<StreamSocket> greet(const SocketAddress& address, const WaitLimit& limit) {
  ASSIGN_OR_RETURN(StreamSocket socket, connect_to(address, limit));
  const std::string greeting = store_greeting();
  std::string echo(kNonceBytes, '\0');
  Status status = socket.write_all(bytes_of(greeting), limit);
  if (status.ok()) status = socket.read_all(bytes_of(echo), limit);
  // Closed or reset behind the greeting: what an older store does with it. A store that has just died looks the same,
  // and then the second connect fails.
  if (status.code() == StatusCode::kUnavailable) return StreamSocket();
  RETURN_IF_ERROR(status);
  if (!greeting.ends_with(echo)) {
    return error(StatusCode::kUnavailable, "{} answers a ping with other bytes; wanted a TCPStore of PyTorch",
                 address.to_string());
  }
  return socket;
}

Result<TcpStoreClient> connect_once(const SocketAddress& address, const WaitLimit& limit) {
  ASSIGN_OR_RETURN(StreamSocket newer, greet(address, limit));
  if (newer.open()) return TcpStoreClient(std::move(newer), StoreDialect::kTorch2);
  ASSIGN_OR_RETURN(StreamSocket older, connect_to(address, limit));
  return TcpStoreClient(std::move(older), StoreDialect::kTorch1);
}

}  // namespace

std::string store_greeting() {
  // An older store reads op 0 (SET) and a key's length: the magic number, the 13 and three bytes of the nonce. With the
  // highest bit set, that length is beyond any allocation, and the store drops the connection at once.
  const uint32_t nonce = std::random_device{}() | 0x00800000u;
  std::string out;
  append_int(out, kValidate);
  append_int(out, kMagic);
  append_int(out, kPing);
  append_int(out, nonce);
  return out;
}

Result<TcpStoreClient> TcpStoreClient::connect(const std::string& host, uint16_t port, const AllowedHosts& allowed,
                                               const WaitLimit& limit) {
  ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, resolve(host, port));
  // All, before the first connect: one allowed address of a name must not open the way to its others.
  for (const SocketAddress& address : addresses) RETURN_IF_ERROR(allowed.check(address));
  while (true) {
    Status last;
    for (const SocketAddress& address : addresses) {
      Result<TcpStoreClient> client = connect_once(address, limit);
      if (client.ok()) return client;
      last = client.status();
      if (last.code() != StatusCode::kUnavailable) break;
    }
    // The trainer's store may not listen yet.
    if (last.code() == StatusCode::kUnavailable && pause_for(kConnectAgain, limit).ok()) continue;
    return last.with_prefix(fmt::format("the TCPStore at {}:{}", host.substr(0, 256), port));
  }
}

bool TcpStoreClient::lost() const {
  pollfd polled{socket_.fd(), POLLRDHUP, 0};
  return poll(&polled, 1, 0) > 0;
}

char TcpStoreClient::op(int torch1_code) const {
  return static_cast<char>(torch1_code + (dialect_ == StoreDialect::kTorch2 ? 1 : 0));
}

Status TcpStoreClient::set(std::string_view key, std::string_view value, const WaitLimit& limit) {
  CHECK(key.size() <= kMaxStoreKeyBytes && value.size() <= kMaxStoreValueBytes);
  std::string out(1, op(kSet));
  append_bytes(out, key);
  append_bytes(out, value);
  return socket_.write_all(bytes_of(out), limit);
}

Status TcpStoreClient::await_key(std::string_view key, const WaitLimit& limit) {
  std::string out(1, op(kWait));
  append_int<uint64_t>(out, 1);
  append_bytes(out, key);
  RETURN_IF_ERROR(socket_.write_all(bytes_of(out), limit));
  ASSIGN_OR_RETURN(const uint8_t reply, read_reply<uint8_t>(socket_, limit));
  if (reply == kStopWaiting) return ok_status();
  return error(StatusCode::kUnavailable, "the TCPStore answers a wait with {}; wanted {}", reply, kStopWaiting);
}

Result<std::string> TcpStoreClient::get(std::string_view key, const WaitLimit& limit) {
  CHECK(key.size() <= kMaxStoreKeyBytes);
  // PyTorch's clients do the same: a GET of a key that is not set is an error of the store.
  RETURN_IF_ERROR(await_key(key, limit).with_prefix(key));
  std::string out(1, op(kGet));
  append_bytes(out, key);
  RETURN_IF_ERROR(socket_.write_all(bytes_of(out), limit));
  ASSIGN_OR_RETURN(const uint64_t size, read_reply<uint64_t>(socket_, limit));
  if (size > kMaxStoreValueBytes) {
    return error(StatusCode::kTooLarge, "the value of '{}' in the TCPStore has {} bytes; wanted at most {}", key, size,
                 kMaxStoreValueBytes);
  }
  std::string value(size, '\0');
  RETURN_IF_ERROR(socket_.read_all(bytes_of(value), limit));
  return value;
}

Result<int64_t> TcpStoreClient::add(std::string_view key, int64_t amount, const WaitLimit& limit) {
  CHECK(key.size() <= kMaxStoreKeyBytes);
  std::string out(1, op(kAdd));
  append_bytes(out, key);
  append_int(out, amount);
  RETURN_IF_ERROR(socket_.write_all(bytes_of(out), limit));
  return read_reply<int64_t>(socket_, limit);
}

}  // namespace millrace::collective
