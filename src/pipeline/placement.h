// Placement: which replica of each stage serves a request. The coordinator decides once, when it takes the request; the
// decision travels with it (wire::RouteHop), so that all senders of a fan-in agree without asking.
//
// A slot is the number of a replica among those of all stages, in the order of the spec.
//
// A stage with several replicas has a ReplicaRouter of its own, with the policy that its spec names, fed with the live
// requests that were placed there. What is known of a prompt is a hint for the policies that look at it.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "stages/replica_router.h"
#include "stages/stage_graph.h"
#include "stages/stage_spec.h"

namespace millrace {

class Placement {
 public:
  static constexpr auto kNone = static_cast<std::size_t>(-1);
  // By stage of the spec: the slot, or kNone where the request has no use for the stage.
  using Route = std::vector<std::size_t>;
  using Serves = std::function<bool(std::size_t slot)>;

  explicit Placement(const std::vector<StageSpec>& stages);

  // A replica that serves, for each stage of `stages`; of a stage that has none, replica 0, which may come back before
  // the request needs it. The request counts in the loads until end() of the same route.
  Route begin(StageSet stages, const Serves& serves, const PlacementHint& hint = {});
  // `tokens`: of the request's hint.
  void end(const Route& route, int64_t tokens = 0);
  // The replica lost what it had cached.
  void forget(std::size_t stage, uint32_t replica);

  // Live requests on a replica of a stage with several.
  int64_t requests(std::size_t stage, uint32_t replica) const;

 private:
  std::vector<uint32_t> replicas_;                     // by stage
  std::vector<std::size_t> first_;                     // by stage: the slot of its replica 0
  std::vector<std::optional<ReplicaRouter>> routers_;  // by stage; none where there is one replica
};

}  // namespace millrace
