// Forwarder: sends requests on to other HTTP servers of this host, over their Unix sockets, and brings the answers back
// as they come: a body of known length as one answer, anything else as a stream.
//
// A client that leaves ends its request there too. A client that reads slowly makes the other server wait: what it has
// to read is at most kForwardPauseBytes and one chunk. An answer that breaks off, breaks off here.
//
// Header fields of one connection (RFC 9110, 7.6.1), keys, Host and Origin are not sent on: who may call what has been
// decided here.
//
// Owner: one server's owner, which stops that server before the Forwarder is destroyed. Thread safety: forward() and
// fetch() from any thread; start() and stop() from the owner's. Callbacks run on the Forwarder's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "http/client.h"
#include "http/server.h"

namespace millrace::http {

inline constexpr std::size_t kForwardPauseBytes = 1 << 20;    // unread by a client: the other server is not read
inline constexpr std::size_t kForwardBodyBytes = 256u << 20;  // of an answer with a length, or of fetch()
inline constexpr int kForwardConnectMs = 5000;

struct ForwardTarget {
  std::string socket;  // the path of a Unix socket
  std::string target;  // "/v1/models?x=y", as it stands in a request
};

class Forwarder {
 public:
  // Renders what a client gets where the other server does not answer; `why` is for a log.
  using RenderFailure = std::function<Response(const std::string& why)>;

  explicit Forwarder(RenderFailure render_failure);
  ~Forwarder();  // stop()
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  Status start();
  // `done`: called once, when nothing more is read of the other server.
  void forward(RequestPtr request, ResponderPtr responder, ForwardTarget target, std::function<void()> done);
  // A GET for this program itself. kUnavailable where there is no complete answer within timeout_ms.
  void fetch(ForwardTarget target, int timeout_ms, std::function<void(Result<ClientResponse>)> done);
  // Ends what runs, as if the other servers had gone. Idempotent.
  void stop();

 private:
  class Transfer;
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace millrace::http
