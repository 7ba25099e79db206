// KvImporter: the transfers of a server that generates (D). A request that lacks enough of its prompt in the cache
// waits here, before the scheduler knows it, until another server's pages are in the cache; then it begins as every
// request does, and finds them. A deterministic state machine without clock, sockets or threads.
//
//   begin() -> KvWant -> KvPart, written, KvTaken ... -> KvEnd -> take_ready()
//
// What fails costs time alone: another server that computes prompts is asked for what has not arrived, once; else the
// request begins with what has, and computes the rest. Bytes become a prefix of the tokens that D itself asked for, in
// the namespace of its request. Requests with the same prefix share one transfer.
//
// Of several servers that one is asked which was given most of the prompt before, or has the fewest open transfers
// (ReplicaRouter).
//
// Owner: the worker `generate`. Thread safety: the worker's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stages/replica_router.h"
#include "stages/transfer/kv_receiver.h"
#include "stages/transfer/transfer_counters.h"
#include "stages/transfer/transfer_env.h"
#include "stages/transfer/transfer_links.h"
#include "stages/transfer/transfer_tombstones.h"

namespace millrace::transfer {

struct ImporterOptions {
  std::string reply_to;   // the endpoint of this server's inbox
  std::size_t peers = 0;  // servers that compute any prompt; 0: a request names its own
  uint64_t id_seed = 0;   // of transfer ids that are made here; different for each process
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
    std::string traceparent = {};            // as in wire::Submit; a transfer of several requests has its first one's
  };
  // True: the request waits, and take_ready() will name it. False: it begins now, because its cache lacks too little,
  // or no server can be asked. kInvalidArgument: its transfer id was used before.
  Result<bool> begin(const Wanted& wanted, int64_t now_ms);
  // It waits no more: it was aborted.
  void cancel(ReqId request, int64_t now_ms);

  // Where those servers are now. Transfers from one that is gone, or has begun anew, end.
  void set_peers(const std::vector<TransferPeers::Replica>& peers, int64_t now_ms);

  void on_part(wire::KvPart part, int64_t now_ms);
  void on_end(const wire::KvEnd& end, int64_t now_ms);
  void on_fetched(TransferEnv::Fetched fetched, int64_t now_ms);
  void on_written(const PageTransfers::Done& done, int64_t now_ms);
  void step(int64_t now_ms);
  // Ends all; their requests are ready.
  void stop(const Status& status, int64_t now_ms);

  struct Ready {
    ReqId request;
    int32_t transferred_tokens = 0;  // that are in the cache because of its transfer
    uint64_t bytes = 0;              // that came, also those of a server that failed
    std::string way;                 // as in wire::KvTransferred
  };
  std::vector<Ready> take_ready() { return std::exchange(ready_, {}); }

  std::size_t open() const { return imports_.size(); }
  void describe(std::vector<wire::Metric>& metrics) const;

 private:
  struct Received {
    KvReceiver::Run run;
    std::optional<uint64_t> ticket;  // of the fetch of its bytes, until they are there
    SharedBytes bytes{};
  };
  struct Peer {
    std::string endpoint;  // empty: it is not there
    uint64_t incarnation = 0;
    int64_t avoided_until_ms = 0;  // it did not answer
  };
  struct Import {
    std::vector<ReqId> waiting;
    TransferPrefix prefix;
    std::string peer;                      // its endpoint
    std::optional<int> replica;            // of peers_; nullopt: the request has named it
    bool second = false;                   // another one has failed
    int32_t from_page = 0;                 // those below are in the cache
    uint64_t number = 0;                   // of what is written (PageTransfers)
    int64_t asked_tokens = 0;              // of the replica
    std::optional<wire::Message> want{};   // not sent yet: the connection is being made
    std::optional<KvReceiver> receiver{};  // from ask() on
    std::deque<Received> received{};       // not written: a part goes behind those that are cached
    bool writing = false;
    int32_t written_pages = 0;
    uint64_t bytes = 0;  // that came
    std::string way;
    int64_t begun_ms = 0;
    std::string traceparent = {};
  };
  // What caused an end: after a peer's failure another one may do better.
  enum class Cause : uint8_t { kPeer, kSelf };
  using Imports = std::map<TransferId, Import>;

  Status send_want(Import& import);
  bool join(const Wanted& wanted, const TransferPrefix& prefix);
  std::optional<int> choose_peer(const ReplicaRouter::Prefix& hashes, std::optional<int> not_this, int64_t now_ms);
  Status ask(Import& import, const TransferId& id, const wire::KvFormat& format, int64_t now_ms);
  Status ask_any(Import import, const wire::KvFormat& format, std::optional<int> not_this, int64_t now_ms);
  bool ask_another(Import& failed, int64_t now_ms);
  TransferId new_id();
  bool works_alone(ReqId request, const char* reason, const Status& status);
  Status report(Import& import);
  Status begin_fetch(Import& import, const wire::KvPart& part);
  Status on_lost(Import& import, std::deque<Received>::iterator part, const Status& status);
  Status write_next(const TransferId& id, Import& import);
  void write_or_end(Imports::iterator it, int64_t now_ms);
  void end(Imports::iterator it, const Status& status, int64_t now_ms, bool notify, Cause cause = Cause::kSelf);

  TransferEnv& env_;
  const ImporterOptions options_;
  Imports imports_;
  struct Write {
    TransferId id;
    int32_t pages = 0;  // that are complete then
    int parts = 0;
  };
  std::map<uint64_t, Write> tickets_;
  std::vector<Peer> peers_;
  std::optional<ReplicaRouter> router_;  // of peers_, where there are any
  std::vector<Ready> ready_;
  TransferTombstones ended_;
  TransferCounters counters_;
  std::map<std::string, uint64_t> alone_;  // requests that asked no server, by reason
  uint64_t next_ticket_ = 1;
  uint64_t next_import_ = 1;
  uint64_t next_id_ = 0;
  uint64_t asked_another_ = 0;
  int64_t waited_ms_ = 0;  // of all that ended
};

}  // namespace millrace::transfer
