// TransferEnv: what the two ends of transfers need of the world: messages to other servers, the pages of this one's
// scheduler, and prompts to compute. Tests have one without sockets.
//
// Owner: the worker. Thread safety: the worker's thread.
#pragma once

#include <string>

#include "scheduler/page_transfers.h"
#include "wire/messages.h"

namespace millrace::transfer {

class TransferEnv {
 public:
  virtual ~TransferEnv() = default;
  // kUnavailable: no server is there; kResourceExhausted: try later. The message is left untouched unless OK.
  virtual Status send(const std::string& endpoint, wire::Message& message) = 0;
  virtual PageTransfers& pages() = 0;
  // Of this server's pages, with the weights that serve now. An error: nothing can be transferred.
  virtual Result<wire::KvFormat> format() const = 0;
};

}  // namespace millrace::transfer
