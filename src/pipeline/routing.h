// Routing: whether a request can begin now, and on which replicas. The coordinator chooses them once (placement.h) and
// the choice travels with the request.
//
// Owner: the coordinator. Thread safety: none.
#pragma once

#include <string>
#include <vector>

#include "pipeline/membership.h"
#include "pipeline/placement.h"
#include "pipeline/spec.h"
#include "stages/stage_graph.h"

namespace millrace {

class Routing {
 public:
  // All must outlive it.
  Routing(const PipelineSpec& spec, const StageGraph& graph, const Membership& members);

  // Empty: each of these stages has a replica that serves.
  std::string why_missing(StageSet stages) const;
  // A replica that the client asks for must be a member: another one would not do.
  Status check_hint(const PlacementHint& hint) const;

  // The request counts in the loads of its replicas until end() of the same route.
  Placement::Route begin(StageSet terminals, const PlacementHint& hint);
  void end(const Placement::Route& route, int64_t tokens) { placement_.end(route, tokens); }
  // The replica has lost what it had cached.
  void forget(std::size_t slot);

  // The route as it travels: with the incarnation that serves now, or 0.
  std::vector<wire::RouteHop> hops(const Placement::Route& route) const;
  // False: a sender on the way to a terminal of `open` may still have a table of peers from before the loss of its
  // receiver. What it sent to the old incarnation would vanish.
  bool senders_know(const Placement::Route& route, StageSet open) const;

 private:
  const PipelineSpec& spec_;
  const StageGraph& graph_;
  const Membership& members_;
  Placement placement_;
};

}  // namespace millrace
