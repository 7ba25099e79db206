// A WebSocket client for tests, over Beast. It blocks: a message that does not come is the test's time limit.
//
// Thread safety: one object per thread.
#pragma once

// clang-format off
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/stream.hpp>
// clang-format on

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>

#include "http/testing/test_client.h"

namespace millrace::http::testing {

// The status of the answer to a handshake. `more`: header fields, each with its line break.
inline int handshake_status(uint16_t port, const std::string& target, const std::string& more = "") {
  Client client(port);
  client.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
              "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + more + "\r\n");
  client.read_until("\r\n\r\n");
  return client.buffer().size() > 12 ? std::atoi(client.buffer().c_str() + 9) : 0;
}

class WebSocketClient {
 public:
  using Edit = std::function<void(boost::beast::websocket::request_type&)>;

  WebSocketClient(uint16_t port, const std::string& target, const Edit& edit = {}) {
    stream_.next_layer().connect({boost::asio::ip::make_address("127.0.0.1"), port});
    if (edit) stream_.set_option(boost::beast::websocket::stream_base::decorator(edit));
    stream_.read_message_max(0);
    stream_.handshake(response_, "127.0.0.1", target, error_);
  }

  bool open() const { return !error_; }
  std::string header(const char* name) const { return std::string(response_[name]); }

  void send(const std::string& text) { stream_.write(boost::asio::buffer(text)); }
  void send_binary(const std::string& bytes) {
    stream_.binary(true);
    send(bytes);
    stream_.text(true);
  }
  // The next message; "": there is none, and the server has closed.
  std::string read() {
    boost::beast::flat_buffer buffer;
    stream_.read(buffer, error_);
    return error_ ? "" : boost::beast::buffers_to_string(buffer.data());
  }
  int close_code() const { return stream_.reason().code; }
  void close() { stream_.close(boost::beast::websocket::close_code::normal, error_); }
  // Without a word.
  void drop() { stream_.next_layer().close(); }

 private:
  boost::asio::io_context io_;
  boost::beast::websocket::stream<boost::asio::ip::tcp::socket> stream_{io_};
  boost::beast::websocket::response_type response_;
  boost::beast::error_code error_;
};

}  // namespace millrace::http::testing
