#include "stages/loop/relay_calls.h"

#include <algorithm>

#include "relay/op_table.h"

namespace millrace::loop {
namespace {

// To a client kTooLarge means its text or context, so this is kInvalidArgument: the operator can raise pool_mib.
Status named(Status status) {
  if (status.code() != StatusCode::kTooLarge) return status;
  return invalid_argument("{}: its pool_mib in the pipeline's file is too small", status.message());
}

// A relay refuses a descriptor as invalid when its put is over or its writer is gone. The descriptor came from another
// stage, so this is that stage's loss and no fault of the client.
Status of_get(Status status) {
  if (status.code() != StatusCode::kInvalidArgument) return named(std::move(status));
  return Status(StatusCode::kUnavailable, status.message());
}

}  // namespace

void RelayCalls::Shared::add(Done end) {
  std::lock_guard lock(mutex);
  done.push_back(std::move(end));
  if (wake) wake();
}

RelayCalls::RelayCalls(std::function<void()> wake) : shared_(std::make_shared<Shared>()) {
  shared_->wake = std::move(wake);
}

RelayCalls::~RelayCalls() {
  for (const auto& [serial, open] : open_) {
    if (open.op) open.relay->cancel(*open.op);
  }
  std::lock_guard lock(shared_->mutex);
  shared_->wake = nullptr;
}

Result<std::string> RelayCalls::put(Relay& relay, PutRequest request, CallPurpose purpose) {
  const uint64_t serial = begin_put(relay, request, std::move(purpose));
  return end_put(serial, relay.put(std::move(request)));
}

uint64_t RelayCalls::begin_put(Relay& relay, PutRequest& request, CallPurpose purpose) {
  const uint64_t serial = next_serial_++;
  request.done = [shared = shared_, serial](const Status& status) {
    shared->add({.serial = serial, .status = status});
  };
  of_request_.emplace(purpose.request, serial);
  open_[serial] = {.purpose = std::move(purpose), .relay = &relay, .put_bytes = total_bytes(request)};
  ++puts_;
  return serial;
}

// It may be collected already: then its reader was quick, or it failed at once.
Result<std::string> RelayCalls::end_put(uint64_t serial, Result<PutTicket> put) {
  const auto open = open_.find(serial);
  if (put.ok()) {
    if (open != open_.end()) open->second.op = put->op;
    return std::move(put->descriptor);
  }
  if (open == open_.end()) return put.status();
  const bool fits = open->second.put_bytes <= open->second.relay->capabilities().max_put_bytes;
  close(open);
  return fits ? put.status() : named(put.status());
}

CallPurpose RelayCalls::close(OpenIt open) {
  const auto [first, last] = of_request_.equal_range(open->second.purpose.request);
  of_request_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == open->first; }));
  CallPurpose purpose = std::move(open->second.purpose);
  if (purpose.kind == CallPurpose::Kind::kPut) --puts_;
  open_.erase(open);
  return purpose;
}

Status RelayCalls::get(Relay& relay, GetRequest request, CallPurpose purpose) {
  const uint64_t serial = next_serial_++;
  request.done = [shared = shared_, serial](Result<std::vector<SharedBytes>> parts) {
    Done end{.serial = serial, .status = parts.ok() ? ok_status() : of_get(parts.status())};
    if (parts.ok()) end.parts = std::move(parts).value();
    shared->add(std::move(end));
  };
  const Result<RelayOp> begun = relay.get(std::move(request));
  if (!begun.ok()) return of_get(begun.status());
  of_request_.emplace(purpose.request, serial);
  open_[serial] = {.purpose = std::move(purpose), .relay = &relay, .op = *begun};
  return ok_status();
}

void RelayCalls::collect(std::vector<CallEnd>& out) {
  std::vector<Done> done;
  {
    std::lock_guard lock(shared_->mutex);
    done.swap(shared_->done);
  }
  for (Done& end : done) {
    const auto open = open_.find(end.serial);
    if (open == open_.end()) continue;  // a call that failed at once and reported it twice
    out.push_back({.purpose = close(open), .status = std::move(end.status), .parts = std::move(end.parts)});
  }
}

bool RelayCalls::is_open(ReqId request) const {
  const auto [first, last] = of_request_.equal_range(request);
  return std::any_of(first, last, [this](const auto& entry) {
    return open_.at(entry.second).purpose.kind != CallPurpose::Kind::kDrain;
  });
}

void RelayCalls::cancel(ReqId request) {
  const auto [first, last] = of_request_.equal_range(request);
  for (auto it = first; it != last; ++it) {
    const Open& open = open_.at(it->second);
    if (open.op && open.purpose.kind != CallPurpose::Kind::kDrain) open.relay->cancel(*open.op);
  }
}

}  // namespace millrace::loop
