// A server of one script for tests of clients: it reads the head of a request, and the script writes what it likes to
// the socket. Not HTTP by itself.
//
// Thread safety: the script runs on the server's thread, one connection after the other.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/status.h"

namespace millrace::http::testing {

// A connection of the server. Its end closes it.
class Peer {
 public:
  Peer(int descriptor, const std::atomic<bool>& stopped) : descriptor_(descriptor), stopped_(stopped) {}
  ~Peer() { ::close(descriptor_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False where the client is gone.
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t count = ::send(descriptor_, data.data(), data.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      data.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
  std::string read_head() {
    std::string head;
    char c = 0;
    while (!head.ends_with("\r\n\r\n") && ::recv(descriptor_, &c, 1, 0) == 1) head += c;
    return head;
  }
  // Until the client closes, or the server is stopped.
  void wait_closed() {
    while (!stopped_) {
      pollfd one{descriptor_, POLLIN, 0};
      char c = 0;
      if (::poll(&one, 1, 20) > 0 && ::recv(descriptor_, &c, 1, 0) <= 0) return;
    }
  }

 private:
  const int descriptor_;
  const std::atomic<bool>& stopped_;
};

class ScriptedServer {
 public:
  using Script = std::function<void(Peer&, const std::string& head)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    CHECK(::listen(listener_, 64) == 0);
    CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~ScriptedServer() {
    stopped_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  int port() const { return port_; }
  int connections() const { return connections_; }

 private:
  void run() {
    while (!stopped_) {
      const int accepted = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (accepted < 0) continue;
      ++connections_;
      Peer peer(accepted, stopped_);
      const std::string head = peer.read_head();
      if (!head.empty()) script_(peer, head);
    }
  }

  const Script script_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stopped_{false};
  std::atomic<int> connections_{0};
  std::thread thread_;
};

}  // namespace millrace::http::testing
