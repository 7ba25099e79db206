// TransferEnv: what the two ends of transfers need of the world: messages to other servers, bytes through relays, and
// the pages of this one's scheduler. Tests have one without sockets.
//
// Owner: the worker. Thread safety: the worker's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "scheduler/page_transfers.h"
#include "wire/messages.h"

namespace millrace::transfer {

class TransferEnv {
 public:
  virtual ~TransferEnv() = default;
  // kUnavailable: no server is there; kResourceExhausted: try later. The message is left untouched unless OK.
  virtual Status send(const std::string& endpoint, wire::Message& message) = 0;
  // Begins to connect to a server that may be sent something soon; else the first message finds no connection.
  virtual void connect(const std::string& endpoint) = 0;
  virtual PageTransfers& pages() = 0;

  // P: gives `part` its bytes, through a relay that reaches `reader`, or in itself. kResourceExhausted: try later.
  virtual Status offer(const wire::Peer& reader, SharedBytes bytes, wire::KvPart& part) = 0;
  // Of this transfer nothing is read any more.
  virtual void drop_offers(const TransferId& id) = 0;

  // D: as relays reach it.
  virtual const wire::Peer& reader() const = 0;
  // Begins to read the bytes of a part that names a relay, `size_bytes` in all; KvImporter::on_fetched() has the
  // ticket.
  struct Fetched {
    TransferId id;
    uint64_t ticket = 0;
    Status status;
    SharedBytes bytes;
  };
  virtual Result<uint64_t> fetch(const wire::KvPart& part, std::size_t size_bytes) = 0;
  virtual void drop_fetches(const TransferId& id) = 0;

  // Of this server's pages, with the weights that serve now. An error: nothing can be transferred.
  virtual Result<wire::KvFormat> format() const = 0;
};

}  // namespace millrace::transfer
