// Who may begin: limits, the terminals that a request has, and ids whose replicas are there and know of each other.
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

// A sender whose table of peers still has a lost one as it was would speak to the dead, and nobody would hear of it.
bool Coordinator::knows_of_loss(std::size_t sender, std::size_t receiver) const {
  const SeatView &from = members_.seats()[sender], &to = members_.seats()[receiver];
  return !from.up || from.status.peers_epoch >= to.lost_epoch;
}

// Empty: a request with these terminals can begin. A stage that a rule may leave out is not waited for: a request that
// turns out to need it fails then, or finds it back.
std::string Coordinator::who_is_missing(StageSet terminals) const {
  const StageSet must = graph_.must_have(terminals), may = graph_.may_need(terminals);
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    const SeatView& first = members_.seats()[stages_[stage].first_seat];
    if ((must & stage_bit(stage)) != 0 && !any_serves(stage)) return members_.why_not_serving(first);
  }
  return who_has_not_heard(may);
}

// Of a loss, among these stages. Where no two replicas of an edge's ends fit, no id does, and none need be drawn.
std::string Coordinator::who_has_not_heard(StageSet among) const {
  for (std::size_t from = 0; from < stages_.size(); ++from) {
    for (std::size_t to = 0; to < stages_.size(); ++to) {
      const bool edge = (graph_.senders(to) & stage_bit(from)) != 0;
      const StageSet both = stage_bit(from) | stage_bit(to);
      if (!edge || (among & both) != both || any_pair_knows(from, to)) continue;
      return fmt::format("'{}' has not heard yet that '{}' was lost", spec_.stages[from].name, spec_.stages[to].name);
    }
  }
  return "";
}

bool Coordinator::any_pair_knows(std::size_t from, std::size_t to) const {
  const StagePlace &senders = stages_[from], &receivers = stages_[to];
  for (std::size_t a = 0; a < senders.replicas; ++a) {
    for (std::size_t b = 0; b < receivers.replicas; ++b) {
      const std::size_t sender = senders.first_seat + a, receiver = receivers.first_seat + b;
      if (may_sit(sender) && may_sit(receiver) && knows_of_loss(sender, receiver)) return true;
    }
  }
  return false;
}

// A replica that does not serve may be a request's only where none of its stage does.
bool Coordinator::may_sit(std::size_t seat) const {
  return members_.seats()[seat].serves() || !any_serves(stage_of_seat_[seat]);
}

bool Coordinator::fits(ReqId id, StageSet may) const {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    if ((may & stage_bit(stage)) == 0) continue;
    const std::size_t seat = seat_of(id, stage);
    if (!may_sit(seat)) return false;
    for (std::size_t sender = 0; sender < stages_.size(); ++sender) {
      const bool edge = (graph_.senders(stage) & may & stage_bit(sender)) != 0;
      if (edge && !knows_of_loss(seat_of(id, sender), seat)) return false;
    }
  }
  return true;
}

// The next id that fits. Where every stage has one replica, the first one does, or who_is_missing() had said no.
Result<ReqId> Coordinator::draw_id(StageSet terminals) {
  const StageSet may = graph_.may_need(terminals);
  for (int i = 0; i < kMaxIdTries; ++i) {
    const ReqId id{next_id_++};
    if (fits(id, may)) return id;
  }
  return error(StatusCode::kUnavailable, "too few replicas serve: none of {} ids fits them", kMaxIdTries);
}

}  // namespace millrace
