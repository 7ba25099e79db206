// TcpStoreClient: a client of PyTorch's TCPStore, the key-value server through which the ranks of a group find each
// other.
//
// Two dialects: that of PyTorch 1.13, and that of 2.2 and newer, which begins with a magic number and has all
// operations one higher. The client offers the newer one. An older store takes the offer for a key of absurd length and
// closes the connection, upon which the client connects again and speaks the older one.
//
// Owner: the function that joins a group. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "collective/allowed_hosts.h"
#include "collective/stream_socket.h"

namespace millrace::collective {

enum class StoreDialect { kTorch1, kTorch2 };

class TcpStoreClient {
 public:
  // Tries until the limit while nothing listens there.
  static Result<TcpStoreClient> connect(const std::string& host, uint16_t port, const AllowedHosts& allowed,
                                        const WaitLimit& limit);
  // Over a connection whose dialect is settled.
  TcpStoreClient(StreamSocket socket, StoreDialect dialect) : socket_(std::move(socket)), dialect_(dialect) {}

  StoreDialect dialect() const { return dialect_; }
  // The store has closed the connection. Any thread.
  bool lost() const;

  Status set(std::string_view key, std::string_view value, const WaitLimit& limit);
  // Waits until the key is set.
  Result<std::string> get(std::string_view key, const WaitLimit& limit);
  // The sum.
  Result<int64_t> add(std::string_view key, int64_t amount, const WaitLimit& limit);

 private:
  char op(int torch1_code) const;
  Status await_key(std::string_view key, const WaitLimit& limit);

  StreamSocket socket_;
  StoreDialect dialect_;
};

// What a client sends first to a store of PyTorch 2; the answer is the last four bytes.
std::string store_greeting();

}  // namespace millrace::collective
