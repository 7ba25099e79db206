#include "stages/transfer/transfer_service.h"

#include <random>
#include <utility>

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
                                 std::optional<PrefillJobs> jobs)
    : scheduler_(scheduler),
      links_(std::move(links)),
      format_(std::move(format)),
      weight_version_(scheduler.facts().weight_version),
      now_ms_(monotonic_ms()),
      exporter_(std::make_unique<KvExporter>(*this, std::move(jobs))),
      importer_(std::make_unique<KvImporter>(*this, ImporterOptions{.reply_to = links_.endpoint,
                                                                    .peers = links_.peers,
                                                                    .id_seed = random_seed(),
                                                                    .min_tokens = links_.min_tokens})) {
  for (const std::string& peer : links_.peers) {
    if (const auto made = connection(peer); !made.ok()) {
      LOG_WARNING("transfers: {}: {}", peer, made.status().to_string());
    }
  }
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

void TransferService::step(int64_t now_ms) {
  now_ms_ = now_ms;
  for (const PageTransfers::Done& done : pages().take_done()) {
    if (exporter_->has_ticket(done.ticket)) {
      exporter_->on_read(done, now_ms);
    } else {
      importer_->on_written(done, now_ms);
    }
  }
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

Result<wire::KvFormat> TransferService::format() const {
  const uint64_t version = scheduler_.facts().weight_version;
  if (version == weight_version_) return format_;
  return error(StatusCode::kConflict, "the weights were updated (version {}); transfers are of those of the start",
               version);
}

void TransferService::describe(std::vector<wire::Metric>& metrics) const {
  importer_->describe(metrics);
  exporter_->describe(metrics);
  metrics.push_back({"kv_transfer_messages_unexpected_total", static_cast<double>(unexpected_)});
}

}  // namespace millrace::transfer
