#include "pipeline/admin_replies.h"

#include <algorithm>

#include "pipeline/weight_updates.h"

namespace millrace {

bool any_ok(const std::vector<wire::AdminReply>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const auto& reply) { return reply.code == StatusCode::kOk; });
}

Status first_failure(const std::vector<wire::AdminReply>& replies) {
  const bool others = any_ok(replies);
  for (const wire::AdminReply& reply : replies) {
    if (reply.code == StatusCode::kOk || (reply.code == StatusCode::kUnavailable && others)) continue;
    return Status(reply.code, fmt::format("{}: {}", reply.stage, reply.message));
  }
  if (replies.empty()) return error(StatusCode::kUnavailable, "no stage replied");
  return ok_status();
}

Result<uint64_t> same_checksum(const std::vector<wire::AdminReply>& replies) {
  const wire::AdminReply* first = nullptr;
  for (const wire::AdminReply& reply : replies) {
    if (reply.code != StatusCode::kOk) continue;
    if (first == nullptr) first = &reply;
    if (reply.weights.checksum == first->weights.checksum) continue;
    return error(StatusCode::kConflict,
                 "{} has loaded weights with the checksum {:016x}; wanted {:016x}, those of {}: the folder is not the "
                 "same for both",
                 reply.stage, reply.weights.checksum, first->weights.checksum, first->stage);
  }
  return first == nullptr ? 0 : first->weights.checksum;
}

Status check_label(const std::string& label) {
  if (label.size() <= kMaxVersionLabelBytes) return ok_status();
  return invalid_argument("weight_version has {} bytes; wanted at most {}", label.size(), kMaxVersionLabelBytes);
}

}  // namespace millrace
