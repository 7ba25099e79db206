#include "wire/pipeline_messages.h"

#include <algorithm>

#include "wire/utf8.h"

namespace millrace::wire {
namespace {

Status check_name(std::string_view field, const std::string& name) {
  if (is_stage_name(name)) return ok_status();
  return invalid_argument("{} is \"{}\"; wanted 1 to {} letters, digits, '-' or '_'", field,
                          utf8_repair(name.substr(0, kMaxStageNameBytes)), kMaxStageNameBytes);
}

Status check_text(const char* field, const std::string& text) {
  const std::size_t fault = utf8_fault(text);
  if (fault == text.size()) return ok_status();
  return invalid_argument("{}: byte {:#04x} at offset {}; wanted UTF-8", field, static_cast<uint8_t>(text[fault]),
                          fault);
}

Status check_not_negative(const char* field, int64_t value) {
  if (value >= 0) return ok_status();
  return invalid_argument("{} is {}; wanted at least 0", field, value);
}

// Who may be the coordinator has no stage.
Status check_origin(const Origin& from, bool coordinator) {
  if (coordinator && from.stage.empty()) return ok_status();
  return check_name("from.stage", from.stage);
}

Status check_failure(const char* field, const std::optional<Failure>& failure) {
  if (!failure || failure->code != StatusCode::kOk) return ok_status();
  return invalid_argument("{} has the code 0 (ok); wanted an error's", field);
}

// Of stages, each once; `what` one of them is.
Status check_names(const char* what, const std::vector<std::string>& names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    RETURN_IF_ERROR(check_name(fmt::format("a {}", what), names[i]));
    const auto end = names.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(names.begin(), end, names[i]) != end) {
      return invalid_argument("{} \"{}\" is named twice; wanted once", what, names[i]);
    }
  }
  return ok_status();
}

Status check_tensor(const TensorInfo& info, const std::vector<uint64_t>& part_bytes) {
  RETURN_IF_ERROR(check_text("path", info.path));
  const auto letter = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  if (info.dtype.empty() || !std::all_of(info.dtype.begin(), info.dtype.end(), letter)) {
    return invalid_argument("dtype is \"{}\"; wanted capitals and digits", utf8_repair(info.dtype));
  }
  for (const int64_t extent : info.shape) RETURN_IF_ERROR(check_not_negative("an extent", extent));
  if (info.size == 0) {
    if (info.part == 0 && info.offset == 0) return ok_status();
    return invalid_argument("part {}, offset {} of a tensor without bytes; wanted 0, 0", info.part, info.offset);
  }
  if (info.part >= part_bytes.size()) {
    return invalid_argument("part {}; wanted one below {}", info.part, part_bytes.size());
  }
  const uint64_t part = part_bytes[info.part];
  if (info.offset <= part && info.size <= part - info.offset) return ok_status();
  return invalid_argument("{} bytes at offset {} of part {}, which has {}", info.size, info.offset, info.part, part);
}

Status check_peer(const Peer& peer) {
  RETURN_IF_ERROR(check_name("stage", peer.stage));
  RETURN_IF_ERROR(check_text("endpoint", peer.endpoint));
  RETURN_IF_ERROR(check_text("host", peer.host));
  RETURN_IF_ERROR(check_text("boot", peer.boot));
  RETURN_IF_ERROR(check_not_negative("pid", peer.pid));
  for (const RelayAddress& relay : peer.relays) RETURN_IF_ERROR(check_name("a relay", relay.relay));
  return ok_status();
}

}  // namespace

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
  if (used.empty()) {
    if (payload.relay.empty() && payload.descriptor.bytes.empty()) return ok_status();
    return invalid_argument("relay \"{}\" and a descriptor of {} bytes without a part; wanted neither",
                            utf8_repair(payload.relay), payload.descriptor.bytes.size());
  }
  RETURN_IF_ERROR(check_name("relay", payload.relay));
  if (!payload.descriptor.bytes.empty()) return ok_status();
  return invalid_argument("descriptor has 0 bytes; wanted one for {} parts", used.size());
}

namespace {

Status check_route(const std::vector<RouteHop>& route) {
  for (const RouteHop& hop : route) RETURN_IF_ERROR(check_name("a stage of the route", hop.stage));
  return ok_status();
}

}  // namespace

Status validate(const Submit& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  RETURN_IF_ERROR(check_names("terminal", m.terminals));
  RETURN_IF_ERROR(check_route(m.route));
  return validate(m.payload).with_prefix("payload");
}

Status validate(const DataReady& m) {
  const bool chunk_id = m.kind == DataKind::kChunk || m.kind == DataKind::kDone;
  const bool payload = m.kind == DataKind::kPayload || m.kind == DataKind::kChunk;
  const bool failure = m.kind == DataKind::kError;
  const auto check = [&m](const char* field, bool has, bool wanted) {
    if (has == wanted) return ok_status();
    return invalid_argument("a message of kind {} {} {}; wanted it to {}", static_cast<int>(m.kind),
                            has ? "has a" : "lacks its", field, has ? "have none" : "have one");
  };
  RETURN_IF_ERROR(check("chunk_id", m.chunk_id.has_value(), chunk_id));
  const int bodies = int{m.payload.has_value()} + int{m.tokens.has_value()} + int{m.text.has_value()};
  if (m.kind == DataKind::kChunk && bodies > 1) {
    return invalid_argument("a chunk has {} of payload, tokens and text; wanted one", bodies);
  }
  const bool typed = m.tokens || m.text;
  if (typed && m.kind != DataKind::kChunk) {
    return invalid_argument("a message of kind {} has tokens or text; wanted them in a chunk alone",
                            static_cast<int>(m.kind));
  }
  RETURN_IF_ERROR(check("payload", m.payload.has_value() || typed, payload));
  RETURN_IF_ERROR(check("failure", m.failure.has_value(), failure));
  RETURN_IF_ERROR(check_origin(m.from, false));
  RETURN_IF_ERROR(check_name("to", m.to));
  RETURN_IF_ERROR(check_names("terminal", m.terminals));
  RETURN_IF_ERROR(check_route(m.route));
  RETURN_IF_ERROR(check_failure("failure", m.failure));
  return m.payload ? validate(*m.payload).with_prefix("payload") : ok_status();
}

Status validate(const DataAck& m) {
  RETURN_IF_ERROR(check_origin(m.from, true));
  return m.to.empty() ? ok_status() : check_name("to", m.to);
}

Status validate(const StreamOut& m) {
  RETURN_IF_ERROR(check_origin(m.from, false));
  RETURN_IF_ERROR(check_text("modality", m.modality));
  if (m.payload.has_value() == m.text.has_value()) {
    return invalid_argument("a piece of the answer has {}; wanted a payload or text", m.text ? "both" : "neither");
  }
  return m.payload ? validate(*m.payload).with_prefix("payload") : ok_status();
}

Status validate(const Complete& m) {
  if (m.result.has_value() == m.failure.has_value()) {
    return invalid_argument("a completion has {}; wanted a result or a failure", m.result ? "both" : "neither");
  }
  RETURN_IF_ERROR(check_origin(m.from, false));
  RETURN_IF_ERROR(check_failure("failure", m.failure));
  return m.result ? validate(*m.result).with_prefix("result") : ok_status();
}

Status validate(const AbortAck& m) { return check_origin(m.from, false); }

Status validate(const Gathered& m) {
  RETURN_IF_ERROR(check_origin(m.from, false));
  return check_names("source", m.sources);
}

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
