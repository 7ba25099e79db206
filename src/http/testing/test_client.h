// A raw-socket HTTP client for tests: sends any bytes, reads what comes, with deadlines. Not part of the server.
//
// Thread safety: one object per thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "http/message.h"

namespace millrace::http::testing {

struct Reply {
  int status = 0;  // 0: no complete response came
  std::string status_line;
  Headers headers;
  std::string body;  // de-chunked
  bool complete = false;
  std::string header(std::string_view name) const {
    const std::string* value = headers.find(name);
    return value == nullptr ? "" : *value;
  }
};

class Client {
 public:
  static constexpr int kTimeoutMs = 120'000;

  explicit Client(uint16_t port, int receive_buffer = 0, const char* address = "127.0.0.1") {
    bool v6 = std::string_view(address).find(':') != std::string_view::npos;
    fd_ = ::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in a4{};
    a4.sin_family = AF_INET;
    a4.sin_port = htons(port);
    sockaddr_in6 a6{};
    a6.sin6_family = AF_INET6;
    a6.sin6_port = htons(port);
    ::inet_pton(v6 ? AF_INET6 : AF_INET, address,
                v6 ? static_cast<void*>(&a6.sin6_addr) : static_cast<void*>(&a4.sin_addr));
    int rc = v6 ? ::connect(fd_, reinterpret_cast<sockaddr*>(&a6), sizeof a6)
                : ::connect(fd_, reinterpret_cast<sockaddr*>(&a4), sizeof a4);
    connected_ = rc == 0;
  }
  // Over a Unix socket.
  explicit Client(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    fd_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  void reset() {  // RST instead of FIN
    linger hard{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void half_close() { ::shutdown(fd_, SHUT_WR); }

  // False when the server closed before everything was taken.
  bool send(std::string_view data) {
    while (!data.empty()) {
      pollfd probe{fd_, POLLOUT, 0};
      if (::poll(&probe, 1, kTimeoutMs) <= 0) return false;
      ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (n <= 0) return false;
      data.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads once into the buffer. False at the end of the connection or after the time limit.
  bool receive(int timeout_ms = kTimeoutMs) {
    pollfd probe{fd_, POLLIN, 0};
    if (::poll(&probe, 1, timeout_ms) <= 0) return false;
    char bytes[65536];
    ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) {
      ended_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // True when the server closes (FIN or RST) within the limit; what arrives until then is kept.
  bool wait_closed(int timeout_ms = kTimeoutMs) {
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    while (!ended_) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      if (left <= 0) return false;
      receive(static_cast<int>(left));
    }
    return true;
  }
  bool read_until(std::string_view text) {
    while (buffer_.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }

  // The next response, de-chunked. `head_only` for answers to HEAD.
  Reply read_reply(bool head_only = false) {
    Reply reply;
    if (!read_until("\r\n\r\n")) return reply;
    size_t end = buffer_.find("\r\n\r\n");
    parse_head(buffer_.substr(0, end + 2), reply);
    buffer_.erase(0, end + 4);
    if (head_only || reply.status == 204 || reply.status == 100) {
      reply.complete = true;
    } else if (reply.header("transfer-encoding") == "chunked") {
      read_chunks(reply);
    } else if (reply.headers.find("content-length") != nullptr) {
      size_t length = std::strtoull(reply.header("content-length").c_str(), nullptr, 10);
      while (buffer_.size() < length && receive()) {
      }
      reply.complete = buffer_.size() >= length;
      reply.body = buffer_.substr(0, length);
      buffer_.erase(0, length);
    } else {
      reply.complete = wait_closed();
      reply.body.swap(buffer_);
    }
    return reply;
  }
  Reply request(std::string_view bytes, bool head_only = false) {
    send(bytes);
    return read_reply(head_only);
  }

  std::string& buffer() { return buffer_; }
  int fd() const { return fd_; }

 private:
  static void parse_head(std::string_view text, Reply& reply) {
    size_t end = text.find("\r\n");
    reply.status_line = std::string(text.substr(0, end));
    if (reply.status_line.size() > 12) reply.status = std::atoi(reply.status_line.c_str() + 9);
    text.remove_prefix(end + 2);
    while (!text.empty()) {
      end = text.find("\r\n");
      std::string_view line = text.substr(0, end);
      size_t colon = line.find(": ");
      if (colon != std::string_view::npos) {
        reply.headers.add(std::string(line.substr(0, colon)), std::string(line.substr(colon + 2)));
      }
      text.remove_prefix(end + 2);
    }
  }
  void read_chunks(Reply& reply) {
    while (read_until("\r\n")) {
      size_t line = buffer_.find("\r\n");
      size_t size = std::strtoull(buffer_.c_str(), nullptr, 16);
      while (buffer_.size() < line + 2 + size + 2) {
        if (!receive()) return;
      }
      if (buffer_.compare(line + 2 + size, 2, "\r\n") != 0) return;
      reply.body += buffer_.substr(line + 2, size);
      buffer_.erase(0, line + 2 + size + 2);
      if (size == 0) {
        reply.complete = true;
        return;
      }
    }
  }

  int fd_ = -1;
  bool connected_ = false;
  bool ended_ = false;
  std::string buffer_;
};

// Polls `condition` for up to five seconds.
template <typename Condition>
bool eventually(Condition condition, int timeout_ms = Client::kTimeoutMs) {
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline std::string get(std::string_view path, std::string_view fields = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(fields) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view fields = "") {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(fields) + "\r\n" + std::string(body);
}

}  // namespace millrace::http::testing
