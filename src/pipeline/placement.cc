#include "pipeline/placement.h"

#include "base/status.h"

namespace millrace {

Placement::Placement(const std::vector<StageSpec>& stages) : routers_(stages.size()) {
  static_assert(kMaxReplicasOfStage <= kMaxReplicas);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const StageSpec& spec = stages[stage];
    first_.push_back(stage == 0 ? 0 : first_.back() + replicas_.back());
    replicas_.push_back(static_cast<uint32_t>(spec.replicas));
    if (spec.replicas > 1) routers_[stage].emplace(spec.replicas, spec.replica_policy);
  }
}

Placement::Route Placement::begin(StageSet stages, const Serves& serves, const PlacementHint& hint) {
  Route route(replicas_.size(), kNone);
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    if ((stages & stage_bit(stage)) == 0) continue;
    route[stage] = first_[stage];
    if (!routers_[stage]) continue;
    std::vector<bool> usable(replicas_[stage]);
    for (uint32_t replica = 0; replica < replicas_[stage]; ++replica) usable[replica] = serves(first_[stage] + replica);
    const bool given = hint.replica && *hint.replica >= 0 && static_cast<uint32_t>(*hint.replica) < replicas_[stage];
    const int replica = given ? *hint.replica : routers_[stage]->choose(hint.prefix, usable).value_or(0);
    routers_[stage]->begin(replica, hint.prefix, hint.tokens);
    route[stage] += static_cast<std::size_t>(replica);
  }
  return route;
}

void Placement::end(const Route& route, int64_t tokens) {
  CHECK(route.size() == routers_.size());
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    if (route[stage] == kNone || !routers_[stage]) continue;
    routers_[stage]->end(static_cast<int>(route[stage] - first_[stage]), tokens);
  }
}

void Placement::forget(std::size_t stage, uint32_t replica) {
  CHECK(stage < routers_.size() && replica < replicas_[stage]);
  if (routers_[stage]) routers_[stage]->forget(static_cast<int>(replica));
}

int64_t Placement::requests(std::size_t stage, uint32_t replica) const {
  CHECK(stage < routers_.size() && replica < replicas_[stage]);
  return routers_[stage] ? routers_[stage]->load(static_cast<int>(replica)).requests : 0;
}

}  // namespace millrace
