// TransferService: both ends of transfers of one server, with its mailboxes and its scheduler. The thread that steps
// the scheduler calls receive() and step() between two steps; nothing else of it has threads.
//
// Owner: a prefill server or the worker `generate`. Thread safety: the owner's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/scheduler.h"
#include "stages/transfer/kv_exporter.h"
#include "stages/transfer/kv_importer.h"
#include "stages/transfer/limits.h"
#include "stages/transfer/part_relays.h"
#include "stages/transfer/transfer_env.h"
#include "stages/transfer/transfer_links.h"

namespace millrace::transfer {

inline constexpr int kTransferRestMs = 2;           // while a transfer is open, the owner asks again so soon
inline constexpr int kTransferListenMs = 5;         // and so soon where other servers may begin one
inline constexpr int64_t kConnectTimeoutMs = 2000;  // a new connection may take so long

class TransferService final : public TransferEnv {
 public:
  // The checksum of the weights of a version; 0: not known, and nothing is transferred.
  using WeightsChecksum = std::function<uint64_t(uint64_t version)>;

  // `format`: of the pages, but for the weights, which may be updated. `jobs`: of a server that computes whatever is
  // wanted. The scheduler outlives it.
  TransferService(Scheduler& scheduler, TransferLinks links, wire::KvFormat format, WeightsChecksum checksum,
                  std::optional<PrefillJobs> jobs = std::nullopt);
  ~TransferService() override;  // the other servers know that these transfers are over

  KvImporter& imports() { return *importer_; }
  KvExporter& exports() { return *exporter_; }
  // Messages that have come; waits up to `wait_ms` for the first.
  void receive(int wait_ms, int64_t now_ms);
  // What PageTransfers::take_done() gave; then step(), after each step of the scheduler.
  void on_written(const PageTransfers::Done& done, int64_t now_ms) { importer_->on_written(done, now_ms); }
  void step(int64_t now_ms);
  // Transfers are of requests that a proxy has sent to two servers, by their ids: this one takes and gives.
  bool by_request() const { return links_.peers == nullptr; }
  // Something is open: call again within kTransferRestMs.
  bool waits() const { return importer_->open() > 0 || exporter_->open() > 0; }
  void describe(std::vector<wire::Metric>& metrics) const;

  Status send(const std::string& endpoint, wire::Message& message) override;
  void connect(const std::string& endpoint) override;
  PageTransfers& pages() override { return scheduler_.transfers(); }
  Result<wire::KvFormat> format() const override;
  Status offer(const wire::Peer& reader, SharedBytes bytes, wire::KvPart& part) override {
    return writer_.offer(reader, std::move(bytes), part);
  }
  void drop_offers(const TransferId& id) override { writer_.drop(id); }
  const wire::Peer& reader() const override { return links_.self; }
  Result<uint64_t> fetch(const wire::KvPart& part, std::size_t size_bytes) override {
    return reader_.fetch(part, size_bytes);
  }
  void drop_fetches(const TransferId& id) override { reader_.drop(id); }

 private:
  struct Connection {
    std::shared_ptr<Outbox> outbox;
    int64_t since_ms = 0;
    bool worked = false;
  };
  Result<Connection*> connection(const std::string& endpoint);
  void update_peers(int64_t now_ms);
  void on(wire::Message message, int64_t now_ms);

  Scheduler& scheduler_;
  TransferLinks links_;
  const wire::KvFormat format_;
  const WeightsChecksum checksum_;
  const uint64_t start_version_;  // of weights whose checksum may be unknown everywhere
  uint64_t peers_version_ = 0;    // of links_.peers
  std::unordered_map<std::string, Connection> connections_;
  PartWriter writer_;
  PartReader reader_;
  int64_t now_ms_ = 0;
  uint64_t unexpected_ = 0;  // messages of other kinds
  std::unique_ptr<KvExporter> exporter_;
  std::unique_ptr<KvImporter> importer_;
};

}  // namespace millrace::transfer
