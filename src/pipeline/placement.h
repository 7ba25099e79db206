// Placement: whether a request can begin now, and which replica of each stage serves it. The coordinator decides once;
// the decision travels with the request (wire::RouteHop), so that all senders of a fan-in agree without asking.
//
// A slot is the number of a replica among those of all stages, in the order of the spec. A stage with several replicas
// has a ReplicaRouter, with the policy that its spec names, fed with the live requests that were placed there. What is
// known of a prompt is a hint for the policies that look at it.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipeline/membership.h"
#include "pipeline/spec.h"
#include "stages/replica_router.h"
#include "stages/stage_graph.h"

namespace millrace {

class Placement {
 public:
  static constexpr auto kNone = static_cast<std::size_t>(-1);
  // By stage of the spec: the slot, or kNone where the request has no use for the stage.
  using Route = std::vector<std::size_t>;

  // All must outlive it.
  Placement(const PipelineSpec& spec, const StageGraph& graph, const Membership& members);

  // Empty: each of these stages has a replica that serves.
  std::string why_missing(StageSet stages) const;
  // The same for those of them that could compute with other weights than a request of now must meet: one that has none
  // which serves may be back before the request needs it, with the weights of the start.
  std::string why_stale(StageSet stages) const;
  // A replica that the client asks for must serve, of each stage that the terminals may need: another one would not do,
  // and one with other weights must not.
  Status check_hint(const PlacementHint& hint, StageSet terminals) const;

  // A replica that serves, for each stage that the terminals may need; of a stage that has none, replica 0, which may
  // come back before the request needs it. The request counts in the loads until end() of the same route.
  Route begin(StageSet terminals, const PlacementHint& hint = {});
  // `tokens`: of the request's hint.
  void end(const Route& route, int64_t tokens = 0);
  // The replica has lost what it had cached.
  void forget(std::size_t slot);

  // The route as it travels: with the incarnation that serves now, or 0.
  std::vector<wire::RouteHop> hops(const Route& route) const;
  // False: a sender on the way to a terminal of `open` may still have the table of peers from before a receiver was
  // lost. What it sent to the old incarnation would vanish.
  bool senders_know(const Route& route, StageSet open) const;

  // Live requests on a replica of a stage with several.
  int64_t requests(std::size_t slot) const;

 private:
  const PipelineSpec& spec_;
  const StageGraph& graph_;
  const Membership& members_;
  std::vector<std::size_t> first_;                     // by stage: the slot of its replica 0
  std::vector<std::optional<ReplicaRouter>> routers_;  // by stage; none where there is one replica
};

}  // namespace millrace
