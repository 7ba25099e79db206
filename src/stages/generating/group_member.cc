#include "stages/generating/group_member.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "collective/nccl_group.h"

namespace millrace {

GroupMember::~GroupMember() {
  leave_any();
  if (thread_.joinable()) thread_.join();
}

void GroupMember::begin_join(uint64_t command, TrainerGroup group, int64_t timeout_ms) {
  leave_any();  // a trainer that starts anew makes the group anew
  Wanted wanted{command, std::move(group), timeout_ms};
  if (!thread_.joinable()) return start(std::move(wanted));
  if (next_) ended_.push_back({next_->command, error(StatusCode::kCancelled, "another group is to be joined instead")});
  next_ = std::move(wanted);
}

void GroupMember::start(Wanted request) {
  const TrainerGroup& wanted = request.group;
  command_ = request.command;
  joining_ = std::make_shared<JoinedGroup>(JoinedGroup{.name = wanted.name});
  done_.store(false, std::memory_order_relaxed);
  const collective::GroupOptions options{.address = wanted.address,
                                         .port = wanted.port,
                                         .rank = wanted.rank_offset + static_cast<int>(replica_),
                                         .world_size = wanted.world_size,
                                         .name = wanted.name,
                                         .allowed_hosts = allowed_hosts_,
                                         .local_index = static_cast<int>(replica_)};
  const bool nccl = wanted.backend == "nccl";
  const auto deadline = collective::Clock::now() + std::chrono::milliseconds(std::max<int64_t>(request.timeout_ms, 0));
  thread_ = std::thread([this, options, nccl, deadline, joining = joining_] {
    trace::name_thread("group join");
    auto group = nccl ? collective::join_nccl_group(options, joining->cancel, deadline)
                      : collective::join_gloo_group(options, joining->cancel, deadline);
    joined_ = group.status();
    if (group.ok()) joining->group = std::move(*group);
    done_.store(true, std::memory_order_release);
  });
}

std::vector<GroupMember::Joined> GroupMember::take_joined() {
  if (thread_.joinable() && done_.load(std::memory_order_acquire)) {
    thread_.join();
    const auto joining = std::exchange(joining_, nullptr);
    Status status = std::exchange(joined_, Status());
    if (status.ok() && joining->cancel->cancelled()) status = error(StatusCode::kCancelled, "the group was left");
    if (status.ok()) {
      LOG_INFO("joined the process group '{}'", joining->name);
      group_ = joining;
    }
    ended_.push_back({command_, std::move(status)});
    if (next_) start(*std::exchange(next_, std::nullopt));
  }
  return std::exchange(ended_, {});
}

Status GroupMember::leave(const std::string& name) {
  const bool joined = group_ && group_->name == name, joining = joining_ && joining_->name == name;
  if (!joined && !joining) return error(StatusCode::kNotFound, "there is no group '{}'", name.substr(0, 256));
  leave_any();
  return ok_status();
}

void GroupMember::leave_any() {
  if (joining_) joining_->cancel->cancel();
  if (group_) group_->cancel->cancel();
  group_ = nullptr;
}

Result<std::shared_ptr<JoinedGroup>> GroupMember::find(const std::string& name) const {
  if (group_ && group_->name == name) return group_;
  return error(StatusCode::kNotFound, "there is no group '{}': wanted /init_weights_update_group first",
               name.substr(0, 256));
}

}  // namespace millrace
