// KvImporter: the transfers of a server that generates (D). A request that lacks enough of its prompt in the cache
// waits here, before the scheduler knows it, until another server's pages are in the cache; then it begins as every
// request does, and finds them. A deterministic state machine without clock, sockets or threads.
//
//   begin() -> KvWant -> KvPart, written, KvTaken ... -> KvEnd -> take_ready()
//
// What fails costs time alone: the request begins anyway, with what has arrived, and computes the rest. Bytes become a
// prefix of the tokens that D itself asked for, in the namespace of its request. Requests with the same prefix share
// one transfer.
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stages/transfer/kv_receiver.h"
#include "stages/transfer/tombstones.h"
#include "stages/transfer/transfer_counters.h"
#include "stages/transfer/transfer_env.h"

namespace millrace::transfer {

struct ImporterOptions {
  std::string reply_to;            // the endpoint of this server's inbox
  std::vector<std::string> peers;  // servers that compute any prompt; empty: a request names its own
  uint64_t id_seed = 0;            // of transfer ids that are made here; different for each process
  int32_t min_tokens = 0;
};

class KvImporter {
 public:
  // `env` outlives it.
  KvImporter(TransferEnv& env, ImporterOptions options);

  struct Wanted {
    ReqId request;
    const std::vector<int32_t>& prompt;
    const std::string& extra_key;
    const wire::RemoteKv* remote = nullptr;  // what a proxy has decided
  };
  // True: the request waits, and take_ready() will name it. False: it begins now, because its cache lacks too little,
  // or no server can be asked. kInvalidArgument: its transfer id was used before.
  Result<bool> begin(const Wanted& wanted, int64_t now_ms);
  // It waits no more: it was aborted.
  void cancel(ReqId request, int64_t now_ms);

  void on_part(wire::KvPart part, int64_t now_ms);
  void on_end(const wire::KvEnd& end, int64_t now_ms);
  void on_written(const PageTransfers::Done& done, int64_t now_ms);
  bool has_ticket(uint64_t ticket) const { return tickets_.contains(ticket); }
  void step(int64_t now_ms);
  // Ends all; their requests are ready.
  void stop(const Status& status, int64_t now_ms);

  struct Ready {
    ReqId request;
    int32_t transferred_tokens = 0;  // that are in the cache because of its transfer
  };
  std::vector<Ready> take_ready() { return std::exchange(ready_, {}); }

  std::size_t open() const { return imports_.size(); }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  struct Received {
    int32_t first_page = 0;
    int32_t pages = 0;
    std::string bytes;
  };
  struct Import {
    std::vector<ReqId> waiting;
    TransferPrefix prefix;
    std::string peer;
    std::optional<wire::Message> want{};  // not sent yet: the connection is being made
    KvReceiver receiver;
    std::deque<Received> received{};  // not written: a part goes behind those that are cached
    bool writing = false;
    int32_t written_pages = 0;
    int64_t begun_ms = 0;
  };
  using Imports = std::map<TransferId, Import>;

  Status send_want(Import& import);
  bool join(const Wanted& wanted, const TransferPrefix& prefix);
  std::optional<std::string> next_peer(int64_t now_ms);
  TransferId new_id();
  bool works_alone(ReqId request, const char* reason, const Status& status);
  Status report(Import& import);
  Status write_next(const TransferId& id, Import& import);
  void end(Imports::iterator it, const Status& status, int64_t now_ms, bool notify);

  TransferEnv& env_;
  const ImporterOptions options_;
  Imports imports_;
  struct Write {
    TransferId id;
    int32_t pages = 0;
    int parts = 0;
  };
  std::map<uint64_t, Write> tickets_;
  std::map<std::string, int64_t> avoided_until_ms_;  // peers that did not answer
  std::vector<Ready> ready_;
  TransferTombstones ended_;
  TransferCounters counters_;
  std::map<std::string, uint64_t> alone_;     // requests that asked no server, by reason
  uint64_t next_ticket_ = uint64_t{1} << 63;  // an exporter of the same server counts from 1
  uint64_t next_id_ = 0;
  std::size_t next_peer_ = 0;
  int64_t waited_ms_ = 0;  // of all that ended
};

}  // namespace millrace::transfer
