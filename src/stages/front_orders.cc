// What the operator orders: each order goes to every scheduler, each answers once, and the front gathers the answers.
// Profiles are the front's too: it records its own part, and makes one file of all when the recording ends.

#include <algorithm>

#include "stages/front.h"

namespace millrace {
namespace {

wire::AdminReply reply_of(uint64_t id, const std::string& stage, const Status& status) {
  return {.id = id, .stage = stage, .code = status.code(), .message = status.message()};
}

}  // namespace

void Front::admin(wire::AdminAction action, std::string argument, int64_t timeout_ms, OrderDone done) {
  timeout_ms = std::clamp<int64_t>(timeout_ms, 0, kMaxAdminTimeoutMs);
  wire::AdminRequest request{.action = action, .argument = std::move(argument), .timeout_ms = timeout_ms};
  Order order{.action = action, .deadline_ms = monotonic_ms() + timeout_ms + kAdminGraceMs, .done = std::move(done)};
  std::lock_guard lock(mutex_);
  request.id = next_order_++;
  if (Status status = begin_order(request, order); !status.ok()) {
    order.replies.push_back(reply_of(request.id, "front", status));
  } else {
    send_order(request, order);
  }
  orders_.emplace(request.id, std::move(order));  // also one that is refused: `done` is called by the front's thread
}

// With the lock held. What must be so before anybody is told; fills the argument.
Status Front::begin_order(wire::AdminRequest& request, Order& order) {
  const auto pending =
      std::count_if(orders_.begin(), orders_.end(), [](const auto& o) { return !o.second.waiting.empty(); });
  if (pending >= kMaxPendingOrders) {
    return error(StatusCode::kResourceExhausted, "{} orders are under way, the limit; try again later", pending);
  }
  if (request.action == wire::AdminAction::kFlushCache) return ok_status();
  if (request.action == wire::AdminAction::kStartProfile) {
    ASSIGN_OR_RETURN(request.argument, profile_.start());
    order.replies.push_back(reply_of(request.id, "front", Status(StatusCode::kOk, "recording")));
  } else {
    ASSIGN_OR_RETURN(request.argument, profile_.begin_stop());
  }
  return ok_status();
}

// With the lock held.
void Front::send_order(const wire::AdminRequest& request, Order& order) {
  for (Replica& replica : replicas_) {
    Status sent(StatusCode::kUnavailable, fmt::format("the {} is not there", replica.name));
    if (replica.up && stages_.at(replica.name).heard_ms != 0) {
      wire::Message message = request;
      sent = replica.outbox->send(message);
    }
    if (sent.ok()) {
      order.waiting.insert(replica.name);
    } else {
      order.replies.push_back(reply_of(request.id, replica.name, sent));
    }
  }
}

void Front::hear_reply(wire::AdminReply reply) {
  std::lock_guard lock(mutex_);
  auto found = orders_.find(reply.id);
  if (found == orders_.end() || found->second.waiting.erase(reply.stage) == 0) return;  // too late, or not asked
  if (found->second.action == wire::AdminAction::kFlushCache && reply.code == StatusCode::kOk) {
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      if (replicas_[i].name == reply.stage) router_.forget(static_cast<int>(i));
    }
  }
  found->second.replies.push_back(std::move(reply));
}

// A stage that died will not answer.
void Front::answer_for(const std::string& stage, const std::string& reason) {
  std::lock_guard lock(mutex_);
  for (auto& [id, order] : orders_) {
    if (order.waiting.erase(stage) == 0) continue;
    const Status status(StatusCode::kUnavailable, fmt::format("the {} stopped: {}", stage, reason));
    order.replies.push_back(reply_of(id, stage, status));
  }
}

// Those that everybody answered, and those whose time is over; with `all`, every one.
void Front::finish_orders(bool all) {
  std::vector<std::pair<uint64_t, Order>> ended;
  const int64_t now_ms = monotonic_ms();
  {
    std::lock_guard lock(mutex_);
    for (auto order = orders_.begin(); order != orders_.end();) {
      if (!all && !order->second.waiting.empty() && now_ms < order->second.deadline_ms) {
        ++order;
        continue;
      }
      ended.emplace_back(order->first, std::move(order->second));
      order = orders_.erase(order);
    }
  }
  for (auto& [id, order] : ended) {
    for (const std::string& stage : order.waiting) {
      const Status late = all ? Status(StatusCode::kUnavailable, "the server is shutting down")
                              : error(StatusCode::kDeadline, "the {} did not answer in time", stage);
      order.replies.push_back(reply_of(id, stage, late));
    }
    finish_order(id, std::move(order));
  }
}

void Front::finish_order(uint64_t id, Order order) {
  const bool refused = order.waiting.empty() && order.replies.size() == 1 && order.replies[0].stage == "front" &&
                       order.replies[0].code != StatusCode::kOk;
  if (order.action != wire::AdminAction::kStopProfile || refused) return order.done(std::move(order.replies));
  // Files are written aside: texts go on meanwhile. There is one writer at a time, as there is one profile.
  if (profile_writer_.joinable()) profile_writer_.join();
  profile_writer_ = std::thread([this, id, order = std::move(order)]() mutable {
    const Result<std::string> path = profile_.finish();
    const Status status = path.ok() ? Status(StatusCode::kOk, *path) : path.status();
    order.replies.insert(order.replies.begin(), reply_of(id, "front", status));
    order.done(std::move(order.replies));
  });
}

}  // namespace millrace
