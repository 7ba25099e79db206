// ZmqContext: the ZeroMQ library's state of one process, and what serves all its sockets: one thread that answers the
// library's questions who may connect (control/zap.h), and handles events of connections made and lost; and the table
// of inproc:// names.
//
// The thread starts with the first socket that needs it and ends in the destructor, which waits for it and, for
// kLingerMs at most, for the last frames. zmq.h is included by .cc files alone.
//
// Owner: shared by its sockets and app/. Thread safety: all functions from any thread. Outlives every socket made from
// it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"

namespace millrace {

class LocalBox;
class SocketService;

inline constexpr int kMaxZmqSockets = 8192;  // of one context; a mailbox needs up to three
inline constexpr int kMaxInprocNames = 4096;

class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* handle() const { return handle_; }

  // ---- for control/ alone

  SocketService& service() const { return *service_; }
  // The box of an inproc name. bind: a new one, or that which a keeping sender made; kConflict where a reader has it
  // already. find: nullptr where the name is not bound; with `keep`, one that waits for its reader.
  Result<std::shared_ptr<LocalBox>> bind_inproc(const std::string& name);
  std::shared_ptr<LocalBox> find_inproc(const std::string& name, bool keep);

 private:
  struct InprocTable;
  void* handle_;
  std::unique_ptr<SocketService> service_;
  std::unique_ptr<InprocTable> inproc_;
};

}  // namespace millrace
