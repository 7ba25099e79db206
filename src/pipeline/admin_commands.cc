#include "pipeline/admin_commands.h"

#include <algorithm>
#include <utility>

#include "pipeline/session_ids.h"

namespace millrace {
namespace {

// Without its id and its stage.
wire::AdminReply reply_of(const Status& status) { return {.code = status.code(), .message = status.message()}; }

bool is_for(const PipelineCommand& command, const ReplicaView& view) {
  const auto& wanted = command.stages;
  if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), view.stage) == wanted.end()) return false;
  return !command.replica || *command.replica == view.replica;
}

bool is_about_weights(const PipelineCommand& command) {
  return command.action == wire::AdminAction::kStageWeights || command.action == wire::AdminAction::kSwitchWeights ||
         command.action == wire::AdminAction::kDropWeights;
}

// Of an update that a trainer sends. kHoldWeights is none: what is staged waits for the trainer alone.
bool is_about_trainer(const PipelineCommand& command) {
  return command.action == wire::AdminAction::kJoinGroup || command.action == wire::AdminAction::kReceiveWeights ||
         command.action == wire::AdminAction::kAwaitWeights;
}

// What a replica that is not needed had in its cache is gone with it.
bool is_gone_with(const PipelineCommand& command, const ReplicaView& view) {
  return command.action == wire::AdminAction::kFlushCache && view.optional && !view.up;
}

bool stands_still(const ReplicaView& view) { return view.silent || view.status.state == wire::StageState::kStalled; }

}  // namespace

AdminCommands::AdminCommands(const Membership& members, Send send, Flushed flushed)
    : members_(members),
      send_(std::move(send)),
      flushed_(std::move(flushed)),
      next_(first_id(members.self().session)) {}

Status AdminCommands::check(const PipelineCommand& command) const {
  if (commands_.size() >= kMaxOpenCommands) {
    return error(StatusCode::kResourceExhausted, "{} commands are open, the limit; try again later", commands_.size());
  }
  for (const std::string& stage : command.stages) {
    if (!members_.find(stage, 0)) return error(StatusCode::kNotFound, "the pipeline has no stage '{}'", stage);
  }
  return ok_status();
}

void AdminCommands::begin(PipelineCommand command, Done done, int64_t now_ms) {
  const uint64_t number = next_++;
  if (const Status status = check(command); !status.ok()) {
    wire::AdminReply refusal = reply_of(status);
    refusal.id = number, refusal.stage = kCoordinatorName;
    return done({std::move(refusal)});
  }
  command.timeout_ms = std::clamp<int64_t>(command.timeout_ms, 0, kMaxCommandMs);
  Command& open = commands_[number];
  open.wanted = command;
  open.deadline_ms = now_ms + command.timeout_ms + kReplyGraceMs;
  open.done = std::move(done);
  for (std::size_t slot = 0; slot < members_.replicas().size(); ++slot) {
    const ReplicaView& view = members_.replicas()[slot];
    if (!is_for(command, view) || is_gone_with(command, view)) continue;
    Status sent = may_ask(command, view);
    if (sent.ok()) {
      wire::Message message = wire::AdminRequest{.id = next_,
                                                 .action = command.action,
                                                 .argument = command.argument,
                                                 .timeout_ms = command.timeout_ms,
                                                 .weight_version = command.weight_version,
                                                 .policy = command.policy,
                                                 .flush_cache = command.flush_cache,
                                                 .weights_checksum = command.weights_checksum};
      sent = send_(slot, message);
    }
    if (sent.ok()) {
      awaited_.emplace(next_++, Asked{number, slot});
      ++open.missing;
    } else {
      add_reply(open, slot, reply_of(sent));
    }
  }
  finish();  // where no replica could be asked
}

// What a replica that stands still has staged is dropped when it goes on.
Status AdminCommands::may_ask(const PipelineCommand& command, const ReplicaView& view) const {
  // The commands would pile up in the queue of a stage that stands still, for this one is sent again and again.
  if (command.action == wire::AdminAction::kShowState && !(view.is_ready() && view.status.pages_total > 0)) {
    return error(StatusCode::kUnavailable, "has no scheduler that can be asked now");
  }
  if (command.action == wire::AdminAction::kShowLog && !view.is_ready()) {
    return error(StatusCode::kUnavailable, "cannot be asked for its log now");
  }
  const bool only_ready = is_about_weights(command) && command.action != wire::AdminAction::kDropWeights;
  const bool may = view.up && (!only_ready || view.is_ready() || !any_ready(command));
  return may ? ok_status() : Status(StatusCode::kUnavailable, members_.why_not_serving(view));
}

bool AdminCommands::any_ready(const PipelineCommand& command) const {
  const auto& all = members_.replicas();
  return std::any_of(all.begin(), all.end(),
                     [&](const ReplicaView& view) { return is_for(command, view) && view.is_ready(); });
}

// Among the replicas that the command is for, in the file's order: as their ranks in a trainer's group are.
std::size_t AdminCommands::rank_of(const PipelineCommand& command, std::size_t slot) const {
  const auto first = members_.replicas().begin();
  return static_cast<std::size_t>(std::count_if(first, first + static_cast<std::ptrdiff_t>(slot),
                                                [&](const ReplicaView& view) { return is_for(command, view); }));
}

void AdminCommands::add_reply(Command& command, std::size_t slot, wire::AdminReply reply) {
  const std::string& name = members_.replicas()[slot].name;
  reply.id = 0, reply.stage = name;
  const bool lost = reply.code == StatusCode::kUnavailable && rank_of(command.wanted, slot) >= command.wanted.needed;
  if (command.wanted.ends_early && reply.code != StatusCode::kOk && !lost && command.failure.ok()) {
    command.failure = error(reply.code, "{}: {}", name, reply.message);
  }
  CHECK(command.replies.emplace(slot, std::move(reply)).second);
}

// A replica's one reply has come: the awaited one after it.
AdminCommands::AskedIt AdminCommands::settle(AskedIt asked, const wire::AdminReply& reply) {
  const auto [number, slot] = asked->second;
  Command& command = commands_.at(number);
  add_reply(command, slot, reply);
  CHECK(command.missing > 0);
  --command.missing;
  const wire::AdminAction action = command.wanted.action;
  const bool flushed = action == wire::AdminAction::kFlushCache || action == wire::AdminAction::kSwitchWeights;
  if (reply.code == StatusCode::kOk && flushed) flushed_(slot, command.wanted, reply.weights);
  return awaited_.erase(asked);
}

void AdminCommands::on_reply(const wire::AdminReply& reply) {
  const auto asked = awaited_.find(reply.id);
  if (asked == awaited_.end()) {
    ++late_;
    return;
  }
  settle(asked, reply);
  finish();
}

// Settles those for which `status_of` gives an error.
void AdminCommands::settle_if(const std::function<Status(const Asked& asked)>& status_of) {
  for (auto asked = awaited_.begin(); asked != awaited_.end();) {
    const Status status = status_of(asked->second);
    asked = status.ok() ? std::next(asked) : settle(asked, reply_of(status));
  }
  finish();
}

void AdminCommands::on_lost(std::size_t slot, const std::string& reason) {
  const ReplicaView& view = members_.replicas()[slot];
  for (auto asked = awaited_.begin(); asked != awaited_.end();) {
    const bool gone = asked->second.slot == slot && is_gone_with(commands_.at(asked->second.command).wanted, view);
    asked = gone ? settle(asked, reply_of(ok_status())) : std::next(asked);
  }
  settle_if([&](const Asked& asked) {
    if (asked.slot != slot) return ok_status();
    return error(StatusCode::kUnavailable, "stopped: {}", reason);
  });
}

// Another replica has done it, and all that have not replied stand still.
bool AdminCommands::waits_for_standing(const Command& command) const {
  if (!is_about_weights(command.wanted)) return false;
  const auto& all = members_.replicas();
  const bool done = std::any_of(command.replies.begin(), command.replies.end(),
                                [](const auto& reply) { return reply.second.code == StatusCode::kOk; });
  for (std::size_t slot = 0; done && slot < all.size(); ++slot) {
    const bool awaited = is_for(command.wanted, all[slot]) && !command.replies.contains(slot);
    if (awaited && !stands_still(all[slot])) return false;
  }
  return done;
}

void AdminCommands::tick(int64_t now_ms) {
  std::set<uint64_t> only_standing;
  for (auto& [number, command] : commands_) {
    if (!command.failure.ok() && !std::exchange(command.ending, true)) {
      command.deadline_ms = std::min(command.deadline_ms, now_ms + kOtherRepliesMs);
    }
    if (waits_for_standing(command)) only_standing.insert(number);
  }
  settle_if([&](const Asked& asked) { return status_at(asked, only_standing, now_ms); });
}

// OK: it is still waited for.
Status AdminCommands::status_at(const Asked& asked, const std::set<uint64_t>& only_standing, int64_t now_ms) const {
  const Command& command = commands_.at(asked.command);
  const ReplicaView& view = members_.replicas()[asked.slot];
  if (only_standing.contains(asked.command)) return Status(StatusCode::kUnavailable, members_.why_not_serving(view));
  if (is_frozen(command, view, now_ms)) {
    return error(StatusCode::kUnavailable, "has sent no heartbeat for {} s", (now_ms - view.last_seen_ms) / 1000);
  }
  if (now_ms < command.deadline_ms) return ok_status();
  if (command.ending) return error(StatusCode::kCancelled, "was not waited for: {}", command.failure.message());
  return error(StatusCode::kDeadline, "did not answer within {} ms", command.wanted.timeout_ms);
}

// The command is not to wait for this replica, which does not run.
bool AdminCommands::is_frozen(const Command& command, const ReplicaView& view, int64_t now_ms) const {
  if (command.wanted.action == wire::AdminAction::kDropWeights) return view.silent;
  return is_about_trainer(command.wanted) && now_ms - view.last_seen_ms >= kFrozenReplicaMs;
}

void AdminCommands::end_all(const Status& status) {
  settle_if([&](const Asked&) { return status; });
}

// Calls `done` of the commands that wait for no reply.
void AdminCommands::finish() {
  std::vector<Command> ended;
  for (auto command = commands_.begin(); command != commands_.end();) {
    if (command->second.missing > 0) {
      ++command;
      continue;
    }
    ended.push_back(std::move(command->second));
    command = commands_.erase(command);
  }
  for (Command& command : ended) {
    std::vector<wire::AdminReply> replies;
    for (auto& [slot, reply] : command.replies) replies.push_back(std::move(reply));
    command.done(std::move(replies));
  }
}

}  // namespace millrace
