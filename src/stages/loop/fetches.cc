#include "stages/loop/fetches.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "payload/inline_parts.h"
#include "payload/packing.h"

namespace millrace::loop {
namespace {

Status of_get(const CallPurpose& purpose, const Status& status) {
  const bool is_payload = purpose.kind == CallPurpose::Kind::kGetPayload;
  const std::string what = is_payload ? "the payload" : fmt::format("chunk {}", purpose.seq);
  const std::string source = purpose.edge.empty() ? "the coordinator" : fmt::format("'{}'", purpose.edge);
  return status.with_prefix(fmt::format("getting {} of {}", what, source));
}

}  // namespace

Result<bool> Fetches::try_get(const CallPurpose& purpose, const wire::Payload& payload, int64_t timeout_ms) {
  const auto relay = context_.env.relays.find(payload.relay);
  if (relay == context_.env.relays.end()) {
    return error(StatusCode::kUnavailable, "the payload came by relay '{}', which this stage has not", payload.relay);
  }
  GetRequest get{.descriptor = payload.descriptor.bytes, .request = purpose.request};
  get.timeout_ms = static_cast<int>(std::clamp<int64_t>(timeout_ms, 1, get.timeout_ms));
  get.sizes.assign(payload.part_bytes.begin(), payload.part_bytes.end());
  CallPurpose with_payload = purpose;
  with_payload.payload = std::make_shared<wire::Payload>(payload);
  const Status status = calls_.get(*relay->second, std::move(get), std::move(with_payload));
  if (status.ok()) return true;
  if (status.code() == StatusCode::kResourceExhausted) return false;
  return status;
}

Result<std::optional<Value>> Fetches::fetch(const LoopRequest& request, CallPurpose purpose, wire::Payload payload) {
  if (!payload.in_relay()) {
    Result<Value> value = restore_inline(payload);
    if (!value.ok()) return of_get(purpose, value.status());
    return std::optional(std::move(value).value());
  }
  const Result<bool> under_way = try_get(purpose, payload, request.deadline_ms - context_.now_ms);
  if (!under_way.ok()) return of_get(purpose, under_way.status());
  if (*under_way) return std::optional<Value>();
  ++context_.counters.refusals;
  waiting_.push_back({.purpose = std::move(purpose), .payload = std::move(payload)});
  context_.retry_soon();
  return std::optional<Value>();
}

// Over the limit, and without a relay, the sender's lease frees it.
void Fetches::drain(ReqId id, const wire::Payload& payload) {
  if (!payload.in_relay() || drains_ >= kMaxDrains) return;
  const Result<bool> under_way = try_get({.kind = CallPurpose::Kind::kDrain, .request = id}, payload, kPeerWaitMs);
  if (under_way.ok() && *under_way) ++drains_;
}

Result<Value> Fetches::value_of(CallEnd& end) {
  if (!end.status.ok()) return of_get(end.purpose, end.status);
  const wire::Payload& payload = *end.purpose.payload;
  Result<Value> value = restore(payload.tree.bytes, payload.tensors, end.parts);
  if (!value.ok()) return of_get(end.purpose, value.status());
  return value;
}

}  // namespace millrace::loop
