#include "stages/transfer/part_relays.h"

#include <span>

#include "base/log.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {

PartWriter::PartWriter(wire::Peer self, loop::Relays relays, std::string wanted)
    : self_(std::move(self)), relays_(std::move(relays)), wanted_(std::move(wanted)), calls_(nullptr) {}

Status PartWriter::offer(const wire::Peer& reader, SharedBytes bytes, wire::KvPart& part) {
  const std::span<const std::byte> all = bytes.span();
  const Result<loop::ChosenRelay> chosen = loop::choose_relay(self_, reader, relays_, wanted_, {&bytes, 1});
  if (!chosen.ok()) {
    note_messages(reader, chosen.status());
    part.bytes.bytes.assign(reinterpret_cast<const char*>(all.data()), all.size());
    return ok_status();
  }
  const ReqId number = numbers_.of(part.id);
  PutRequest put{.parts = {std::move(bytes)}, .request = number, .destination = chosen->address};
  ASSIGN_OR_RETURN(part.descriptor.bytes, calls_.put(*chosen->relay, std::move(put), {.request = number}));
  part.relay = chosen->name;
  return ok_status();
}

// Once for each reader: it holds as long as both run.
void PartWriter::note_messages(const wire::Peer& reader, const Status& why) {
  if (noted_.size() >= kMaxEndpoints) noted_.clear();
  if (!noted_.emplace(reader.stage, reader.replica, reader.incarnation).second) return;
  LOG_INFO("KV pages go to {}-{} in messages, which copies them more often: {}", reader.stage, reader.replica,
           why.message());
}

void PartWriter::drop(const TransferId& id) {
  if (const auto number = numbers_.take(id)) calls_.cancel(*number);
}

void PartWriter::collect() {
  std::vector<loop::CallEnd> ends;  // a part that was not read is for its reader to report
  calls_.collect(ends);
}

PartReader::PartReader(loop::Relays relays, std::function<void()> wake)
    : relays_(std::move(relays)), calls_(std::move(wake)) {}

Result<uint64_t> PartReader::fetch(const wire::KvPart& part, std::size_t size_bytes) {
  const auto relay = relays_.find(part.relay);
  if (relay == relays_.end()) {
    return error(StatusCode::kUnavailable, "the part comes through relay '{}', which is not here", part.relay);
  }
  const ReqId number = numbers_.of(part.id);
  const uint64_t ticket = next_ticket_++;
  GetRequest get{.descriptor = part.descriptor.bytes, .request = number, .timeout_ms = kFetchTimeoutMs};
  get.sizes = {size_bytes};
  using Kind = loop::CallPurpose::Kind;
  RETURN_IF_ERROR(
      calls_.get(*relay->second, std::move(get), {.kind = Kind::kGetPayload, .request = number, .seq = ticket}));
  open_.emplace(ticket, part.id);
  return ticket;
}

void PartReader::drop(const TransferId& id) {
  if (const auto number = numbers_.take(id)) calls_.cancel(*number);
}

std::vector<TransferEnv::Fetched> PartReader::take_fetched() {
  std::vector<loop::CallEnd> ends;
  calls_.collect(ends);
  std::vector<TransferEnv::Fetched> out;
  for (loop::CallEnd& end : ends) {
    const auto open = open_.extract(end.purpose.seq);
    if (open.empty()) continue;
    out.push_back({open.mapped(), end.purpose.seq, std::move(end.status), {}});
    if (out.back().status.ok()) out.back().bytes = std::move(end.parts.front());
  }
  return out;
}

}  // namespace millrace::transfer
