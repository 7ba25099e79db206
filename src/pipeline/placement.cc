#include "pipeline/placement.h"

namespace millrace {

Placement::Placement(const PipelineSpec& spec, const StageGraph& graph, const Membership& members)
    : spec_(spec), graph_(graph), members_(members), routers_(spec.stages.size()) {
  static_assert(kMaxReplicasOfStage <= kMaxReplicas);
  std::size_t first = 0;
  for (std::size_t stage = 0; stage < spec.stages.size(); ++stage) {
    const StageSpec& one = spec.stages[stage];
    // In the sequence of Membership's constructor, whose list the slots index.
    first_.push_back(first);
    first += static_cast<std::size_t>(one.replicas);
    if (one.replicas > 1) routers_[stage].emplace(one.replicas, one.replica_policy);
  }
}

std::string Placement::why_missing(StageSet stages) const {
  for (std::size_t stage = 0; stage < graph_.size(); ++stage) {
    if ((stages & stage_bit(stage)) == 0) continue;
    if (std::string why = members_.why_stage_missing(stage); !why.empty()) return why;
  }
  return "";
}

// A request may begin while a stage is missing that comes back with the weights of its start. With other weights than
// those the answer would be of two versions, so such a stage must be there.
std::string Placement::why_stale(StageSet stages) const {
  StageSet risky = 0;
  for (const ReplicaView& view : members_.replicas()) {
    const bool updated = view.weights.version > kStartVersion;
    if (updated || (view.is_ready() && !view.serves())) risky |= stage_bit(view.stage_index);
  }
  return why_missing(stages & risky);
}

Status Placement::check_hint(const PlacementHint& hint, StageSet terminals) const {
  if (!hint.replica) return ok_status();
  const StageSet stages = graph_.may_need(terminals);
  for (const ReplicaView& view : members_.replicas()) {
    const bool asked = view.replica == static_cast<uint32_t>(*hint.replica);
    // Of stages with several replicas alone: the number means nothing to the others.
    if (!asked || view.serves() || !routers_[view.stage_index] || (stages & stage_bit(view.stage_index)) == 0) continue;
    return error(StatusCode::kUnavailable, "the requested replica does not serve: {}: {}", view.name,
                 members_.why_not_serving(view));
  }
  return ok_status();
}

Placement::Route Placement::begin(StageSet terminals, const PlacementHint& hint) {
  const StageSet stages = graph_.may_need(terminals);
  Route route(routers_.size(), kNone);
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    if ((stages & stage_bit(stage)) == 0) continue;
    // Also where no replica serves, see the header; hops() then gives incarnation 0.
    route[stage] = first_[stage];
    if (!routers_[stage]) continue;
    const int replicas = spec_.stages[stage].replicas;
    std::vector<bool> serves;
    serves.reserve(static_cast<std::size_t>(replicas));
    for (int i = 0; i < replicas; ++i) serves.push_back(members_.replicas()[first_[stage] + serves.size()].serves());
    const bool given = hint.replica && *hint.replica >= 0 && *hint.replica < replicas;
    const int replica = given ? *hint.replica : routers_[stage]->choose(hint.prefix, serves).value_or(0);
    // Counted for a replica that the client chose as well: the policies see its load.
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

void Placement::forget(std::size_t slot) {
  const ReplicaView& view = members_.replicas().at(slot);
  if (routers_[view.stage_index]) routers_[view.stage_index]->forget(static_cast<int>(view.replica));
}

std::vector<wire::RouteHop> Placement::hops(const Route& route) const {
  std::vector<wire::RouteHop> out;
  for (const std::size_t slot : route) {
    if (slot == kNone) continue;
    CHECK(slot < members_.replicas().size());
    const ReplicaView& view = members_.replicas()[slot];
    out.push_back({view.stage, view.replica, view.serves() ? view.peer.incarnation : 0});
  }
  return out;
}

bool Placement::senders_know(const Route& route, StageSet open) const {
  CHECK(route.size() == routers_.size());
  const StageSet may = graph_.may_need(open);
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    if ((may & stage_bit(stage)) == 0) continue;
    CHECK(route[stage] != kNone);  // the route was chosen for terminals of which `open` is a part
    const uint64_t lost_epoch = members_.replicas()[route[stage]].lost_epoch;
    for (std::size_t sender = 0; lost_epoch > 0 && sender < route.size(); ++sender) {
      if ((graph_.senders(stage) & may & stage_bit(sender)) == 0) continue;
      const ReplicaView& from = members_.replicas()[route[sender]];
      // One that is down sends nothing, and gets the present table when it joins.
      if (from.up && from.status.peers_epoch < lost_epoch) return false;
    }
  }
  return true;
}

int64_t Placement::requests(std::size_t slot) const {
  const ReplicaView& view = members_.replicas().at(slot);
  const auto& router = routers_[view.stage_index];
  return router ? router->load(static_cast<int>(view.replica)).requests : 0;
}

}  // namespace millrace
