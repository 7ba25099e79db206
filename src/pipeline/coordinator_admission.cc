// Admission: limits, the terminals that a request has, its route, and whether the stages know of each other's losses.
#include <fmt/format.h>

#include <algorithm>

#include "pipeline/coordinator.h"

namespace millrace {

// Until every stage was there once, all are waited for: an engine that starts is not ready for a part of its work.
Status Coordinator::may_submit(StageSet terminals) {
  std::string missing = draining_ || !was_ready_ ? why_not_ready() : who_is_missing(terminals);
  if (!missing.empty()) return Status(StatusCode::kUnavailable, "the pipeline is not ready: " + missing);
  const auto limit = static_cast<std::size_t>(max_requests_);
  if (table_.size() >= limit) {
    return error(StatusCode::kResourceExhausted, "{} requests are live, the limit; try again later", table_.size());
  }
  if (aborts_.size() >= limit * kOpenAbortsPerRequest) {
    return error(StatusCode::kResourceExhausted, "{} aborts are open, the limit; try again later", aborts_.size());
  }
  return ok_status();
}

Result<StageSet> Coordinator::terminals_of(const Value& inputs, const SubmitOptions& options) const {
  std::vector<std::string> names = spec_.terminals();
  if (options.terminals) {
    names = *options.terminals;
  } else if (!spec_.terminals_rule.empty()) {
    const auto rule = library_.terminal_rules.find(spec_.terminals_rule);
    if (rule == library_.terminal_rules.end()) {
      return internal_error("there is no rule of terminals '{}'", spec_.terminals_rule);
    }
    ASSIGN_OR_RETURN(names, rule->second(inputs));
  }
  if (names.empty()) return invalid_argument("the request has no terminals; wanted at least one");
  StageSet terminals = 0;
  for (const std::string& name : names) {
    const std::size_t stage = graph_.index_of(name);
    if (stage == graph_.size() || !spec_.stages[stage].terminal) {
      return invalid_argument("'{}' is not a terminal of the pipeline; wanted some of: {}", name,
                              fmt::join(spec_.terminals(), ", "));
    }
    if ((terminals & stage_bit(stage)) != 0) return invalid_argument("terminal '{}' is named twice", name);
    terminals |= stage_bit(stage);
  }
  return terminals;
}

bool Coordinator::any_serves(std::size_t stage) const {
  const auto seats = members_.seats().begin() + static_cast<std::ptrdiff_t>(stages_[stage].first_seat);
  return std::any_of(seats, seats + stages_[stage].replicas, [](const SeatView& seat) { return seat.serves(); });
}

// Empty: a request with these terminals can begin. A stage that a rule may leave out is not waited for: a request that
// turns out to need it fails then, or finds it back.
std::string Coordinator::who_is_missing(StageSet terminals) const {
  const StageSet must = graph_.must_have(terminals);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const SeatView& first = members_.seats()[stages_[stage].first_seat];
    if ((must & stage_bit(stage)) != 0 && !any_serves(stage)) return members_.why_not_serving(first);
  }
  return "";
}

// The route as it travels: with the incarnation that serves now, or 0.
std::vector<wire::RouteHop> Coordinator::hops(const Placement::Route& route) const {
  std::vector<wire::RouteHop> out;
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    const auto seat = seat_of(route, stage);
    if (!seat) continue;
    const SeatView& view = members_.seats()[*seat];
    out.push_back({view.stage, view.replica, view.serves() ? view.peer.incarnation : 0});
  }
  return out;
}

std::vector<wire::RouteHop> Coordinator::route_of(ReqId id) const {
  const auto found = table_.find(id);
  return found == table_.end() ? std::vector<wire::RouteHop>{} : hops(found->second->route);
}

// A sender whose table of peers still has a lost one as it was would speak to the dead, and nobody would hear of it.
bool Coordinator::senders_know(const LiveRequest& request) const {
  const StageSet may = graph_.may_need(request.open);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if ((may & stage_bit(stage)) == 0) continue;
    const uint64_t lost_epoch = members_.seats()[*seat_of(request.route, stage)].lost_epoch;
    for (std::size_t sender = 0; lost_epoch > 0 && sender < stages_.size(); ++sender) {
      if ((graph_.senders(stage) & may & stage_bit(sender)) == 0) continue;
      const SeatView& from = members_.seats()[*seat_of(request.route, sender)];
      if (from.up && from.status.peers_epoch < lost_epoch) return false;
    }
  }
  return true;
}

}  // namespace millrace
