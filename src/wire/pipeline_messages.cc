#include "wire/pipeline_messages.h"

#include <algorithm>
#include <numeric>

#include "base/utf8.h"
#include "wire/checks.h"

namespace millrace::wire {
namespace {

Status check_tensor(const TensorInfo& info, const std::vector<uint64_t>& part_bytes) {
  RETURN_IF_ERROR(check_text("path", info.path));
  const auto letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  // A shape of it, not a list: which names are dtypes is for restore() to know, and a stage passes on what it does not.
  if (info.dtype.empty() || !std::all_of(info.dtype.begin(), info.dtype.end(), letter)) {
    return invalid_argument("dtype is \"{}\"; wanted capitals and digits", utf8_repair(info.dtype));
  }
  for (const int64_t extent : info.shape) RETURN_IF_ERROR(check_not_negative("an extent", extent));
  // One form for tensors without bytes, so that equal payloads are equal messages.
  if (info.size == 0) {
    if (info.part == 0 && info.offset == 0) return ok_status();
    return invalid_argument("part {}, offset {} of a tensor without bytes; wanted 0, 0", info.part, info.offset);
  }
  if (info.part >= part_bytes.size()) {
    return invalid_argument("part {}; wanted one below {}", info.part, part_bytes.size());
  }
  const uint64_t part = part_bytes[info.part];
  // By subtraction: the sum of two numbers of a peer may wrap.
  if (info.offset <= part && info.size <= part - info.offset) return ok_status();
  return invalid_argument("{} bytes at offset {} of part {}, which has {}", info.size, info.offset, info.part, part);
}

// Of a payload whose bytes are all in the message.
Status check_inline(const Payload& payload) {
  // No overflow: kMaxParts times kMaxPartBytes is 2^52.
  uint64_t total = 0;
  for (const uint64_t bytes : payload.part_bytes) total += bytes;
  if (total != payload.inline_bytes.bytes.size()) {
    return invalid_argument("inline_bytes has {} bytes for parts of {}; wanted as many",
                            payload.inline_bytes.bytes.size(), total);
  }
  // Exactly one way to the bytes. With two a receiver would have to choose, and could choose otherwise than the
  // sender's lease expects.
  if (payload.relay.empty() && payload.descriptor.bytes.empty()) return ok_status();
  return invalid_argument("relay \"{}\" and a descriptor of {} bytes {}; wanted neither", utf8_repair(payload.relay),
                          payload.descriptor.bytes.size(),
                          payload.part_bytes.empty() ? "without a part" : "beside inline_bytes");
}

// What is printed or logged must be text; the endpoint is parsed when it is connected to.
Status check_peer(const Peer& peer) {
  RETURN_IF_ERROR(check_name("stage", peer.stage));
  RETURN_IF_ERROR(check_text("endpoint", peer.endpoint));
  RETURN_IF_ERROR(check_text("host", peer.host));
  RETURN_IF_ERROR(check_text("boot", peer.boot));
  RETURN_IF_ERROR(check_text("direct_endpoint", peer.direct_endpoint));
  RETURN_IF_ERROR(check_not_negative("pid", peer.pid));
  for (const RelayAddress& relay : peer.relays) RETURN_IF_ERROR(check_name("a relay", relay.relay));
  return ok_status();
}

}  // namespace

uint64_t relay_bytes(const Payload& payload) {
  if (!payload.in_relay()) return 0;
  return std::accumulate(payload.part_bytes.begin(), payload.part_bytes.end(), uint64_t{0});
}

bool is_stage_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= kMaxStageNameBytes && std::all_of(name.begin(), name.end(), allowed);
}

Status validate(const Payload& payload) {
  if (payload.tree.bytes.empty()) return invalid_argument("tree has 0 bytes; wanted at least 1");
  for (std::size_t i = 0; i < payload.part_bytes.size(); ++i) {
    if (payload.part_bytes[i] == 0 || payload.part_bytes[i] > kMaxPartBytes) {
      return invalid_argument("part {} has {} bytes; wanted 1 to {}", i, payload.part_bytes[i], kMaxPartBytes);
    }
  }
  // A part that no tensor uses would be put, fetched and released for nothing, and never be noticed.
  std::vector<bool> used(payload.part_bytes.size());
  for (std::size_t i = 0; i < payload.tensors.size(); ++i) {
    const TensorInfo& info = payload.tensors[i];
    if (Status status = check_tensor(info, payload.part_bytes); !status.ok()) {
      return status.with_prefix(fmt::format("tensor {}", i));
    }
    if (info.size > 0) used[info.part] = true;
  }
  if (const auto idle = std::find(used.begin(), used.end(), false); idle != used.end()) {
    return invalid_argument("part {} is no tensor's; wanted each part used", idle - used.begin());
  }
  // Without parts too: inline_bytes, relay and descriptor must then be empty.
  if (used.empty() || !payload.inline_bytes.bytes.empty()) return check_inline(payload);
  RETURN_IF_ERROR(check_name("relay", payload.relay));
  if (!payload.descriptor.bytes.empty()) return ok_status();
  return invalid_argument("descriptor has 0 bytes; wanted one for {} parts", used.size());
}

Status validate(const Submit& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  RETURN_IF_ERROR(check_names("terminal", m.terminals));
  RETURN_IF_ERROR(check_route(m.route));
  RETURN_IF_ERROR(check_traceparent(m.traceparent));
  return validate(m.payload).with_prefix("payload");
}

Status validate(const AbortAck& m) { return check_origin(m.from, false); }

Status validate(const Shutdown& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  return check_not_negative("grace_ms", m.grace_ms);
}

Status validate(const Register& m) {
  RETURN_IF_ERROR(check_peer(m.self).with_prefix("self"));
  return check_text("reply_to", m.reply_to);
}

Status validate(const Welcome& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  RETURN_IF_ERROR(check_name("stage", m.stage));
  RETURN_IF_ERROR(check_failure("refused", m.refused));
  return check_not_negative("lease_ms", m.lease_ms);
}

Status validate(const Peers& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  for (std::size_t i = 0; i < m.peers.size(); ++i) {
    if (Status status = check_peer(m.peers[i]); !status.ok()) return status.with_prefix(fmt::format("peer {}", i));
  }
  return ok_status();
}

}  // namespace millrace::wire
