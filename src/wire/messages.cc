#include "wire/messages.h"

namespace millrace::wire {

const char* stage_state_name(StageState state) {
  static constexpr const char* kNames[] = {"loading", "ready", "stalled", "failed", "draining"};
  return kNames[static_cast<std::size_t>(state)];
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
  RETURN_IF_ERROR(check("payload", m.payload.has_value(), payload));
  return check("failure", m.failure.has_value(), failure);
}

Status validate(const Complete& m) {
  if (m.result.has_value() != m.failure.has_value()) return ok_status();
  return invalid_argument("a completion has {}; wanted a result or a failure", m.result ? "both" : "neither");
}

}  // namespace millrace::wire
