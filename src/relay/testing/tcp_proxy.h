// For tests: a proxy between two TCP relays that flips a byte of what the writer sends, cuts it, stalls it or slows it.
//
// Thread safety: made, asked and destroyed by one thread; the proxy has threads of its own.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "relay/descriptor.h"
#include "relay/tcp/address.h"

namespace millrace::tcp {

enum class Mischief { kNone, kFlip, kCut, kStall, kSlow };

class Proxy {
 public:
  // at: the byte of what the writer sends on a connection; times: on so many connections, the others pass.
  Proxy(const std::string& writer_address, Mischief mischief, uint64_t at, int times = 1 << 30)
      : target_(parse_instance(writer_address)->socket), mischief_(mischief), at_(at), times_(times) {
    SocketAddress any = *parse_host_port("127.0.0.1:0");
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bound_.size = sizeof(bound_.storage);
    CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&any.storage), any.size) == 0 && listen(listener_, 64) == 0);
    CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&bound_.storage), &bound_.size) == 0);
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~Proxy() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    for (const int fd : fds_) shutdown(fd, SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    for (const int fd : fds_) close(fd);
    close(listener_);
  }
  // The same descriptor, but its writer is reached through this proxy.
  std::string reroute(const std::string& descriptor) const {
    Descriptor d = *decode_descriptor(descriptor, "tcp");
    d.tail = bound_.to_string();
    return encode_descriptor(d);
  }
  int connections() const { return connections_; }
  uint64_t passed() const { return passed_; }  // bytes to readers, on all connections

 private:
  void accept_all() {
    while (!stopping_) {
      const int reader = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (reader < 0) continue;
      const int writer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const bool wicked = connections_++ < times_;
      fds_.insert(fds_.end(), {reader, writer});
      if (connect(writer, reinterpret_cast<const sockaddr*>(&target_.storage), target_.size) != 0) {
        shutdown(reader, SHUT_RDWR);
        continue;
      }
      threads_.emplace_back([this, reader, writer] { pass(reader, writer, Mischief::kNone); });
      threads_.emplace_back(
          [this, reader, writer, wicked] { pass(writer, reader, wicked ? mischief_ : Mischief::kNone); });
    }
  }

  // Until one side ends, both end.
  void pass(int from, int to, Mischief mischief) {
    std::array<char, 64 << 10> buffer;
    uint64_t seen = 0;
    while (!stopping_) {
      std::size_t most = buffer.size();
      if (mischief == Mischief::kSlow) most = 10'000;  // each 10 ms: 1 MB/s
      if (mischief != Mischief::kSlow && mischief != Mischief::kNone && seen < at_) most = std::min(most, at_ - seen);
      if (seen == at_ && mischief == Mischief::kCut) break;
      if (seen == at_ && mischief == Mischief::kStall) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        continue;
      }
      const ssize_t got = recv(from, buffer.data(), most, 0);
      if (got <= 0) break;
      if (seen == at_ && mischief == Mischief::kFlip) buffer[0] = static_cast<char>(buffer[0] ^ 1);
      seen += static_cast<uint64_t>(got);
      if (!send_all(to, buffer.data(), static_cast<std::size_t>(got))) break;
      if (mischief != Mischief::kNone) passed_ += static_cast<uint64_t>(got);
      if (mischief == Mischief::kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    shutdown(from, SHUT_RDWR);
    shutdown(to, SHUT_RDWR);
  }
  static bool send_all(int fd, const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t sent = send(fd, data, size, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data += sent;
      size -= static_cast<std::size_t>(sent);
    }
    return true;
  }

  const SocketAddress target_;
  const Mischief mischief_;
  const uint64_t at_;
  const int times_;
  SocketAddress bound_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  std::atomic<uint64_t> passed_{0};
  std::vector<int> fds_;  // of the acceptor until it has ended
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace millrace::tcp
