#include "pipeline/admin_replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "pipeline/admin_commands.h"
#include "pipeline/weight_updates.h"

namespace millrace {
namespace {

constexpr std::size_t kMaxCauseBytes = 2048;  // then no further replica is named

// Why replicas failed: often all for one reason, reported once, behind their names.
class Causes {
 public:
  void add(const wire::AdminReply& reply) {
    if (bytes_ >= kMaxCauseBytes) return;
    const auto known = std::find_if(causes_.begin(), causes_.end(),
                                    [&](const Cause& cause) { return cause.message == reply.message; });
    bytes_ += reply.stage.size() + (known == causes_.end() ? reply.message.size() : 0);
    if (known == causes_.end()) {
      causes_.push_back({reply.stage, reply.message});
    } else {
      known->stages += ", " + reply.stage;
    }
  }
  // Empty: there is none.
  std::string text() const {
    std::string out;
    for (const Cause& cause : causes_) {
      out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", cause.stages, cause.message);
    }
    return out;
  }

 private:
  struct Cause {
    std::string stages;
    std::string_view message;  // of a reply
  };
  std::vector<Cause> causes_;
  std::size_t bytes_ = 0;
};

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
  Causes causes;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    const wire::AdminReply& reply = replies[i];
    // The replies are in the file's sequence, so the first `needed` are those that a trainer's group counts on.
    const bool may_be_lost = others && i >= needed;
    if (reply.code == StatusCode::kOk || (reply.code == StatusCode::kUnavailable && may_be_lost)) continue;
    // Cancelled is what the others report when one has failed: the one that failed is named.
    const bool is_cause = reply.code != StatusCode::kCancelled;
    if (found == nullptr || (is_cause && found->code == StatusCode::kCancelled)) found = &reply;
    if (is_cause) causes.add(reply);
  }
  if (std::string text = causes.text(); !text.empty()) return Status(found->code, std::move(text));
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
