#include "stages/transfer/transfer_service.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "stages/stage.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

TransferService::TransferService(Scheduler& scheduler, TransferLinks links, wire::KvFormat format,
                                 WeightsChecksum checksum, std::optional<PrefillJobs> jobs)
    : scheduler_(scheduler),
      links_(std::move(links)),
      format_(std::move(format)),
      checksum_(std::move(checksum)),
      start_version_(scheduler.facts().weight_version),
      writer_(links_.self, links_.relays, links_.relay),
      reader_(links_.relays, [waker = links_.inbox->waker()] { waker->wake(); }),
      now_ms_(monotonic_ms()),
      exporter_(std::make_unique<KvExporter>(*this, std::move(jobs), kLayersBytes, links_.spans)) {
  const bool asks = links_.peers && links_.peers->compute();
  importer_ = std::make_unique<KvImporter>(*this, ImporterOptions{.reply_to = links_.endpoint,
                                                                  .peers = asks ? links_.peers->count() : 0,
                                                                  .id_seed = random_seed(),
                                                                  .min_tokens = links_.min_tokens});
}

TransferService::~TransferService() {
  const Status status = error(StatusCode::kUnavailable, "the server is stopping");
  importer_->stop(status, now_ms_);
  exporter_->stop(status, now_ms_);
}

void TransferService::receive(int wait_ms, int64_t now_ms) {
  now_ms_ = now_ms;
  for (std::optional<wire::Message> message = links_.inbox->receive(wait_ms); message;
       message = links_.inbox->receive(0)) {
    on(std::move(*message), now_ms);
  }
}

void TransferService::on(wire::Message message, int64_t now_ms) {
  if (auto* want = std::get_if<wire::KvWant>(&message)) {
    exporter_->on_want(std::move(*want), now_ms);
  } else if (auto* part = std::get_if<wire::KvPart>(&message)) {
    importer_->on_part(std::move(*part), now_ms);
  } else if (const auto* taken = std::get_if<wire::KvTaken>(&message)) {
    exporter_->on_taken(*taken, now_ms);
  } else if (const auto* end = std::get_if<wire::KvEnd>(&message)) {
    exporter_->on_end(*end, now_ms);
    importer_->on_end(*end, now_ms);
  } else {
    ++unexpected_;
  }
}

// Connections to those that are gone would be tried for ever; what they had or wanted ends now.
void TransferService::update_peers(int64_t now_ms) {
  if (!links_.peers || peers_version_ == links_.peers->version()) return;
  peers_version_ = links_.peers->version();
  const std::vector<TransferPeers::Replica> replicas = links_.peers->replicas();
  std::erase_if(connections_, [&](const auto& each) {
    return std::none_of(replicas.begin(), replicas.end(), [&](const auto& one) { return one.endpoint == each.first; });
  });
  if (links_.peers->compute()) {
    importer_->set_peers(replicas, now_ms);
  } else {
    exporter_->set_takers(replicas, now_ms);
  }
}

void TransferService::step(int64_t now_ms) {
  now_ms_ = now_ms;
  update_peers(now_ms);
  for (Fetched& fetched : reader_.take_fetched()) importer_->on_fetched(std::move(fetched), now_ms);
  writer_.collect();
  exporter_->step(now_ms);
  importer_->step(now_ms);
}

Result<TransferService::Connection*> TransferService::connection(const std::string& endpoint) {
  const auto known = connections_.find(endpoint);
  if (known != connections_.end()) return &known->second;
  if (connections_.size() >= kMaxEndpoints) {
    // Those that never worked, or do not now, make space: an address that a client invents stays for a short time.
    std::erase_if(connections_, [&](const auto& each) {
      return !each.second.worked && now_ms_ - each.second.since_ms >= kConnectTimeoutMs;
    });
    if (connections_.size() >= kMaxEndpoints) {
      return error(StatusCode::kUnavailable, "{} servers are connected; the limit is {}", connections_.size(),
                   kMaxEndpoints);
    }
  }
  ASSIGN_OR_RETURN(std::shared_ptr<Outbox> outbox, links_.connect(endpoint));
  return &connections_.emplace(endpoint, Connection{std::move(outbox), now_ms_}).first->second;
}

// A connection that was just begun is as a queue that is full: the message is kept and sent later.
Status TransferService::send(const std::string& endpoint, wire::Message& message) {
  now_ms_ = monotonic_ms();
  ASSIGN_OR_RETURN(Connection * to, connection(endpoint));
  Status status = to->outbox->send(message);
  if (status.ok()) to->worked = true;
  if (status.code() != StatusCode::kUnavailable) return status;
  if (!to->worked && now_ms_ - to->since_ms < kConnectTimeoutMs) {
    return Status(StatusCode::kResourceExhausted, status.message());
  }
  to->worked = false;
  return status;
}

void TransferService::connect(const std::string& endpoint) {
  if (const auto opened = connection(endpoint); !opened.ok()) LOG_WARNING("transfers: {}", opened.status().message());
}

Result<wire::KvFormat> TransferService::format() const {
  const uint64_t version = scheduler_.facts().weight_version;
  wire::KvFormat format = format_;
  format.weights_checksum = checksum_(version);
  if (format.weights_checksum != 0 || version == start_version_) return format;
  return error(StatusCode::kConflict, "the checksum of the weights of version {} is not known", version);
}

void TransferService::describe(std::vector<wire::Metric>& metrics) const {
  importer_->describe(metrics);
  exporter_->describe(metrics);
  metrics.push_back({"kv_transfer_messages_unexpected_total", static_cast<double>(unexpected_)});
}

}  // namespace millrace::transfer
