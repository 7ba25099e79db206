#include "pipeline/routing.h"

namespace millrace {

Routing::Routing(const PipelineSpec& spec, const StageGraph& graph, const Membership& members)
    : spec_(spec), graph_(graph), members_(members), placement_(spec.stages) {}

std::string Routing::why_missing(StageSet stages) const {
  for (std::size_t stage = 0; stage < graph_.size(); ++stage) {
    if ((stages & stage_bit(stage)) == 0) continue;
    if (std::string why = members_.why_stage_missing(stage); !why.empty()) return why;
  }
  return "";
}

Status Routing::check_hint(const PlacementHint& hint) const {
  if (!hint.replica) return ok_status();
  for (const ReplicaView& view : members_.replicas()) {
    const bool asked = view.replica == static_cast<uint32_t>(*hint.replica);
    if (!asked || view.up || spec_.stages[view.stage_index].replicas == 1) continue;
    return error(StatusCode::kUnavailable, "the {} is down: {}", view.name, members_.why_not_serving(view));
  }
  return ok_status();
}

Placement::Route Routing::begin(StageSet terminals, const PlacementHint& hint) {
  const auto serves = [this](std::size_t slot) { return members_.replicas()[slot].serves(); };
  return placement_.begin(graph_.may_need(terminals), serves, hint);
}

void Routing::forget(std::size_t slot) {
  const ReplicaView& view = members_.replicas()[slot];
  placement_.forget(view.stage_index, view.replica);
}

std::vector<wire::RouteHop> Routing::hops(const Placement::Route& route) const {
  std::vector<wire::RouteHop> out;
  for (const std::size_t slot : route) {
    if (slot == Placement::kNone) continue;
    const ReplicaView& view = members_.replicas()[slot];
    out.push_back({view.stage, view.replica, view.serves() ? view.peer.incarnation : 0});
  }
  return out;
}

bool Routing::senders_know(const Placement::Route& route, StageSet open) const {
  const StageSet may = graph_.may_need(open);
  for (std::size_t stage = 0; stage < route.size(); ++stage) {
    if ((may & stage_bit(stage)) == 0) continue;
    const uint64_t lost_epoch = members_.replicas()[route[stage]].lost_epoch;
    for (std::size_t sender = 0; lost_epoch > 0 && sender < route.size(); ++sender) {
      if ((graph_.senders(stage) & may & stage_bit(sender)) == 0) continue;
      const ReplicaView& from = members_.replicas()[route[sender]];
      if (from.up && from.status.peers_epoch < lost_epoch) return false;
    }
  }
  return true;
}

}  // namespace millrace
