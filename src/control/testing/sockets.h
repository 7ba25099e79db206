// What the tests of sockets share: messages with numbers, waiting for something to come true, raw TCP peers, a proxy
// that can turn into a black hole, and a folder that goes with its test.
//
// Thread safety: each object on one thread, but for Proxy::hole().
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "control/endpoint.h"
#include "control/mailbox.h"

namespace millrace::testing_control {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

inline wire::Message numbered(uint64_t id) { return wire::AbortRequest{ReqId{id}}; }
inline uint64_t number_of(const wire::Message& message) { return std::get<wire::AbortRequest>(message).id.value; }

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Until it comes true, for so long at most.
inline bool eventually(const std::function<bool()>& attempt, int limit_ms = 120'000) {
  const auto end = Clock::now() + std::chrono::milliseconds(limit_ms);
  while (!attempt()) {
    if (Clock::now() > end) return false;
    sleep_ms(2);
  }
  return true;
}

// With kRefuse the first sends fail until the two sockets have met.
inline bool send(Outbox& out, uint64_t id) {
  wire::Message message = numbered(id);
  return eventually([&] { return out.send(message).ok(); });
}

inline std::optional<uint64_t> next(Inbox& in, int timeout_ms = 120'000) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  do {
    if (auto message = in.receive(10)) return number_of(*message);
  } while (Clock::now() < end);
  return std::nullopt;
}

class Folder {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "control-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Bytes of this process in memory.
inline std::size_t resident_bytes() {
  long pages = 0, resident = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return static_cast<std::size_t>(resident) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

inline uint16_t port_of(const std::string& endpoint) {
  const auto parsed = parse_endpoint(endpoint);
  EXPECT_TRUE(parsed.ok()) << parsed.status().to_string();
  return parsed.ok() ? parsed->port : 0;
}

// The first 64 bytes of ZMTP 3.1 with the NULL mechanism, and the READY command of a PUSH socket.
inline std::string zmtp_greeting() {
  std::string out("\xFF\0\0\0\0\0\0\0\0\x7F\x03\x01NULL", 16);
  out.resize(64, '\0');
  return out;
}
inline std::string zmtp_ready() {
  std::string body("\x05READY\x0BSocket-Type\0\0\0\x04PUSH", 6 + 12 + 4 + 4);
  return std::string("\x04", 1) + static_cast<char>(body.size()) + body;
}

// A peer that sends whatever bytes it likes.
class RawPeer {
 public:
  explicit RawPeer(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  RawPeer(RawPeer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawPeer() {
    if (fd_ >= 0) ::close(fd_);
  }
  // False where the other side has hung up.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // Up to the first message. Each answer is awaited: READY in one send with the greeting is refused by the library for
  // that alone. False where the other side has hung up.
  bool greet() const {
    const std::size_t theirs = zmtp_greeting().size() + zmtp_ready().size();  // PULL has as many letters as PUSH
    return send(zmtp_greeting()) && take(zmtp_greeting().size()) && send(zmtp_ready()) &&
           take(theirs - zmtp_greeting().size());
  }
  // Reads what comes until the other side hangs up.
  bool hung_up_on(int limit_ms = 120'000) const {
    char bytes[4096];
    const auto end = Clock::now() + std::chrono::milliseconds(limit_ms);
    while (Clock::now() < end) {
      pollfd item{fd_, POLLIN, 0};
      if (::poll(&item, 1, 50) > 0 && ::recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool take(std::size_t count) const {
    for (char byte = 0; count > 0; --count) {
      if (::recv(fd_, &byte, 1, MSG_WAITALL) != 1) return false;
    }
    return true;
  }

  int fd_;
};

// Carries bytes between a client (one at a time) and a port, until it turns into a black hole: then both
// connections stay open and nothing goes through any more, as when a machine or a cable is gone.
class Proxy {
 public:
  explicit Proxy(uint16_t target) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), target_(target) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    stop_ = true;
    thread_.join();
    for (const int fd : {listener_, near_, far_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  uint16_t port() const { return port_; }
  void hole() { hole_ = true; }

 private:
  void run() {
    while (!stop_) {
      pollfd items[3] = {{near_ < 0 ? listener_ : -1, POLLIN, 0}, {near_, POLLIN, 0}, {far_, POLLIN, 0}};
      if (hole_) {
        sleep_ms(5);
        continue;
      }
      if (::poll(items, 3, 20) <= 0) continue;
      if (items[0].revents != 0) connect();
      if (items[1].revents != 0) carry(near_, far_);
      if (near_ >= 0 && items[2].revents != 0) carry(far_, near_);
    }
  }
  void connect() {
    near_ = ::accept(listener_, nullptr, nullptr);
    far_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(target_);
    EXPECT_EQ(::connect(far_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  void carry(int from, int to) {
    char bytes[65536];
    const ssize_t got = ::recv(from, bytes, sizeof bytes, 0);
    if (got > 0 && ::send(to, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL) == got) return;
    ::close(std::exchange(near_, -1));
    ::close(std::exchange(far_, -1));
  }

  int listener_, near_ = -1, far_ = -1;
  uint16_t target_, port_ = 0;
  std::atomic<bool> stop_{false}, hole_{false};
  std::thread thread_;
};

}  // namespace millrace::testing_control
