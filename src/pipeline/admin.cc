#include "pipeline/admin.h"

#include <algorithm>

namespace millrace {
namespace {

wire::AdminReply reply_of(uint64_t id, const std::string& stage, const Status& status) {
  return {.id = id, .stage = stage, .code = status.code(), .message = status.message()};
}

Status may_begin(const PipelineOrder& order, const Membership& members, std::size_t open) {
  if (open >= kMaxOpenOrders) {
    return error(StatusCode::kResourceExhausted, "{} orders are under way, the limit; try again later", open);
  }
  for (const std::string& stage : order.stages) {
    if (!members.find(stage, 0)) return error(StatusCode::kNotFound, "the pipeline has no stage '{}'", stage);
  }
  return ok_status();
}

}  // namespace

void AdminOrders::begin(PipelineOrder order, const Membership& members, const Send& send, Done done, int64_t now_ms) {
  const uint64_t number = next_++;
  if (Status status = may_begin(order, members, orders_.size()); !status.ok()) {
    return done({reply_of(number, "coordinator", status)});
  }
  Order open{.timeout_ms = std::clamp<int64_t>(order.timeout_ms, 0, kMaxOrderMs), .done = std::move(done)};
  open.deadline_ms = now_ms + open.timeout_ms + kReplyGraceMs;
  for (std::size_t replica = 0; replica < members.seats().size(); ++replica) {
    const SeatView& view = members.seats()[replica];
    const auto& wanted = order.stages;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), view.stage) == wanted.end()) continue;
    Status sent(StatusCode::kUnavailable, members.why_not_serving(view));
    if (view.up) {
      wire::Message message = wire::AdminRequest{next_, order.action, order.argument, open.timeout_ms};
      sent = send(replica, message);
    }
    if (sent.ok()) {
      awaited_.emplace(next_++, Asked{number, replica, view.name});
      ++open.missing;
    } else {
      open.replies.emplace(replica, reply_of(number, view.name, sent));
    }
  }
  orders_.emplace(number, std::move(open));
  tick(now_ms);  // one that nobody could be asked for ends here
}

// A replica's one reply is there: the awaited one after it.
AdminOrders::AskedIt AdminOrders::settle(AskedIt asked, const Status& status) {
  Order& order = orders_.at(asked->second.order);
  order.replies.emplace(asked->second.replica, reply_of(asked->second.order, asked->second.name, status));
  --order.missing;
  return awaited_.erase(asked);
}

bool AdminOrders::hear(const wire::AdminReply& reply) {
  const auto asked = awaited_.find(reply.id);
  if (asked == awaited_.end()) return false;
  settle(asked, Status(reply.code, reply.message));
  tick(0);
  return true;
}

void AdminOrders::lost(std::size_t replica, const std::string& reason) {
  for (auto asked = awaited_.begin(); asked != awaited_.end();) {
    if (asked->second.replica != replica) {
      ++asked;
      continue;
    }
    const std::string name = asked->second.name;
    asked = settle(asked, error(StatusCode::kUnavailable, "{} stopped: {}", name, reason));
  }
  tick(0);
}

void AdminOrders::tick(int64_t now_ms) {
  for (auto asked = awaited_.begin(); asked != awaited_.end();) {
    const Order& order = orders_.at(asked->second.order);
    if (now_ms < order.deadline_ms) {
      ++asked;
      continue;
    }
    const std::string name = asked->second.name;
    asked = settle(asked, error(StatusCode::kDeadline, "{} did not answer within {} ms", name, order.timeout_ms));
  }
  std::vector<Order> ended;
  for (auto order = orders_.begin(); order != orders_.end();) {
    if (order->second.missing > 0) {
      ++order;
      continue;
    }
    ended.push_back(std::move(order->second));
    order = orders_.erase(order);
  }
  for (Order& done : ended) {
    std::vector<wire::AdminReply> replies;
    for (auto& [replica, reply] : done.replies) replies.push_back(std::move(reply));
    done.done(std::move(replies));
  }
}

void AdminOrders::end_all(const Status& status) {
  for (auto asked = awaited_.begin(); asked != awaited_.end();) asked = settle(asked, status);
  tick(0);
}

}  // namespace millrace
