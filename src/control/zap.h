// Who may connect: the handler of ZeroMQ's authentication questions (ZAP, RFC 27) at inproc://zeromq.zap.01.
//
// A socket with a shared key has that key's public half as its ZAP domain, and so the question itself names which
// client key is wanted: the handler keeps no state. Anything else than CURVE with that client key is refused, and so is
// a question that is not as the protocol wants it. Sockets without a key ask nothing.
//
// Thread safety: one thread reads the socket (SocketService).
#pragma once

#include "base/status.h"

namespace millrace {

Result<void*> open_zap_handler(void* zmq_context);
// Answers one question; true: go on.
bool answer_zap(void* socket);

}  // namespace millrace
