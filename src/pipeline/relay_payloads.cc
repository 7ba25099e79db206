#include "pipeline/relay_payloads.h"

#include <algorithm>

#include "payload/inline_parts.h"
#include "payload/packing.h"

namespace millrace {

RelayPayloads::RelayPayloads(wire::Peer self, loop::Relays relays, std::string wanted, std::function<void()> wake)
    : self_(std::move(self)), relays_(std::move(relays)), wanted_(std::move(wanted)), calls_(std::move(wake)) {}

// The relays may answer later than this: RelayCalls' list is shared with them, and its wake is cut off.
RelayPayloads::~RelayPayloads() = default;

Result<wire::Payload> RelayPayloads::give(ReqId id, const Value& value, const wire::Peer& to) {
  ASSIGN_OR_RETURN(Lifted lifted, lift(value));
  wire::Payload payload{.tree = {std::move(lifted.tree)}, .tensors = std::move(lifted.tensors)};
  if (put_inline(lifted.parts, payload)) return payload;
  ASSIGN_OR_RETURN(const loop::ChosenRelay chosen, loop::choose_relay(self_, to, relays_, wanted_, lifted.parts));
  // For this reader alone: another process that gets the descriptor cannot read it.
  PutRequest put{.parts = std::move(lifted.parts), .request = id, .destination = chosen.address};
  payload.relay = chosen.name;
  std::unique_lock lock(calls_mutex_);
  const uint64_t serial = calls_.begin_put(*chosen.relay, put, {.request = id});
  lock.unlock();
  // Without the mutex, as the put copies its bytes; tick() and other requests go on meanwhile.
  Result<PutTicket> ticket = chosen.relay->put(std::move(put));
  lock.lock();
  ASSIGN_OR_RETURN(payload.descriptor.bytes, calls_.end_put(serial, std::move(ticket)));
  return payload;
}

void RelayPayloads::take(ReqId id, const wire::Payload& payload, int timeout_ms, Taken done) {
  const uint64_t number = next_get_++;
  const auto get = gets_.emplace(number, Get{.request = id, .payload = payload, .timeout_ms = timeout_ms}).first;
  get->second.done = std::move(done);
  if (Status status = try_get(number, get->second); !status.ok()) finish(get, status);
}

// OK also where it must be tried again.
Status RelayPayloads::try_get(uint64_t number, Get& get) {
  const auto relay = relays_.find(get.payload.relay);
  if (relay == relays_.end()) {
    return error(StatusCode::kUnavailable, "it came through relay '{}', which is not here", get.payload.relay);
  }
  GetRequest request{.descriptor = get.payload.descriptor.bytes, .request = get.request, .timeout_ms = get.timeout_ms};
  // Those of the message: the relay refuses a put of other sizes.
  request.sizes.assign(get.payload.part_bytes.begin(), get.payload.part_bytes.end());
  const loop::CallPurpose purpose{.kind = loop::CallPurpose::Kind::kGetPayload, .request = get.request, .seq = number};
  std::unique_lock lock(calls_mutex_);
  Status status = calls_.get(*relay->second, std::move(request), purpose);
  lock.unlock();
  get.waits = status.code() == StatusCode::kResourceExhausted;
  return get.waits ? ok_status() : status;
}

RelayPayloads::GetIt RelayPayloads::finish(GetIt get, Result<Value> value) {
  // Erased before the call: `done` may end the request, which calls forget().
  const Taken done = std::move(get->second.done);
  const GetIt next = gets_.erase(get);
  done(std::move(value));
  return next;
}

void RelayPayloads::forget(ReqId id) {
  {
    std::lock_guard lock(calls_mutex_);
    // Those that are open at a relay end with kCancelled, collected by a later tick(); those that wait for capacity end
    // here.
    calls_.cancel(id);
  }
  for (auto get = gets_.begin(); get != gets_.end();) {
    const bool its = get->second.request == id && get->second.waits;
    get = its ? finish(get, Status(StatusCode::kCancelled, "the request has ended")) : std::next(get);
  }
}

void RelayPayloads::tick(int64_t now_ms) {
  std::vector<loop::CallEnd> ends;
  {
    std::lock_guard lock(calls_mutex_);
    calls_.collect(ends);
  }
  for (loop::CallEnd& end : ends) {
    const auto get = gets_.find(end.purpose.seq);
    // A put that ends badly is for its reader to report: the request fails there, or by its deadline.
    if (end.purpose.kind == loop::CallPurpose::Kind::kPut || get == gets_.end()) continue;
    const wire::Payload& payload = get->second.payload;
    Result<Value> value = end.status.ok() ? restore(payload.tree.bytes, payload.tensors, end.parts)
                                          : Result<Value>(std::move(end.status));
    finish(get, std::move(value));
  }
  for (auto get = gets_.begin(); get != gets_.end();) {
    Get& waiting = get->second;
    Status status;
    if (waiting.waits) {
      if (waiting.until_ms == 0) waiting.until_ms = now_ms + waiting.timeout_ms;
      waiting.timeout_ms = static_cast<int>(std::max<int64_t>(waiting.until_ms - now_ms, 0));
      status = waiting.timeout_ms > 0
                   ? try_get(get->first, waiting)
                   : Status(StatusCode::kDeadline, "the relay had no capacity for it before its deadline");
    }
    get = status.ok() ? std::next(get) : finish(get, status);
  }
}

}  // namespace millrace
