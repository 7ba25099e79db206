#include "pipeline/admin_replies.h"

#include <algorithm>

#include "pipeline/admin_commands.h"
#include "pipeline/weight_updates.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxCauseBytes = 2048;  // then no further replica is named

}  // namespace

bool was_refused(const std::vector<wire::AdminReply>& replies) {
  return replies.size() == 1 && replies.front().stage == kCoordinatorName;
}

bool any_ok(const std::vector<wire::AdminReply>& replies) {
  return std::any_of(replies.begin(), replies.end(), [](const auto& reply) { return reply.code == StatusCode::kOk; });
}

Status first_failure(const std::vector<wire::AdminReply>& replies, std::size_t needed) {
  const bool others = any_ok(replies);
  const wire::AdminReply* found = nullptr;
  std::string causes;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    const wire::AdminReply& reply = replies[i];
    // The replies are in the file's sequence, so the first `needed` are those that a trainer's group counts on.
    const bool may_be_lost = others && i >= needed;
    if (reply.code == StatusCode::kOk || (reply.code == StatusCode::kUnavailable && may_be_lost)) continue;
    // Cancelled is what the others report when one has failed: the one that failed is named.
    const bool is_cause = reply.code != StatusCode::kCancelled;
    if (found == nullptr || (is_cause && found->code == StatusCode::kCancelled)) found = &reply;
    // Replicas often fail for one reason.
    const bool is_new = causes.find(reply.message) == std::string::npos;
    if (is_cause && is_new && causes.size() < kMaxCauseBytes) {
      causes += fmt::format("{}{}: {}", causes.empty() ? "" : "; ", reply.stage, reply.message);
    }
  }
  if (found != nullptr && !causes.empty()) return Status(found->code, std::move(causes));
  if (found != nullptr) return Status(found->code, fmt::format("{}: {}", found->stage, found->message));
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
