#include "stages/loop/request_report.h"

#include <utility>

namespace millrace::loop {
namespace {

// Before its work has started, only a payload that is fetched, or a put, moves a request by itself. Afterwards the loop
// cannot see whether the worker computes or waits for a stream, so that counts as work.
bool is_working(const LoopRequest& request, const RelayCalls& calls) {
  return request.in.started || request.in.fetches_payload() || calls.is_open(request.id);
}

std::vector<std::string> names_of(Tombstone::Targets bits, const LoopContext& context) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < context.targets.size(); ++i) {
    if ((bits >> i & 1) != 0) out.push_back(context.targets[i]);
  }
  return out;
}

wire::StageRequest stage_request_of(const LoopRequest& request, const LoopContext& context, const RelayCalls& calls) {
  wire::StageRequest out{.id = request.id, .targets = names_of(targets_of(request, context), context)};
  if (!request.is_live()) {
    out.state = wire::StageRequestState::kFailed;
  } else if (is_working(request, calls)) {
    out.state = wire::StageRequestState::kWorking;
  }
  for (const auto& [from, edge] : request.in.edges) {
    if (edge.next > 0) out.sources.push_back(from);
  }
  return out;
}

}  // namespace

// Flushed alone: what waits in an open batch has reached no stage.
Tombstone::Targets targets_of(const LoopRequest& request, const LoopContext& context) {
  CHECK(context.targets.size() <= 64);  // kMaxStages
  Tombstone::Targets out = 0;
  for (std::size_t i = 0; i < context.targets.size(); ++i) {
    const auto edge = request.out.edges.find(context.targets[i]);
    if (edge != request.out.edges.end() && edge->second.flushed > 0) out |= uint64_t{1} << i;
  }
  return out;
}

wire::RequestReport report_on(const wire::RequestProbe& probe, const LoopContext& context, const RequestTable& requests,
                              const RelayCalls& calls) {
  wire::RequestReport report{.from = context.origin(), .round = probe.round};
  for (const ReqId id : probe.ids) {
    if (const LoopRequest* request = requests.find(id)) {
      report.requests.push_back(stage_request_of(*request, context, calls));
    } else if (const Tombstone* ended = requests.tombstones().find(id)) {
      using State = wire::StageRequestState;
      report.requests.push_back({.id = id,
                                 .state = ended->how == Ended::kFinished ? State::kFinished : State::kFailed,
                                 .targets = names_of(ended->targets, context)});
    }
  }
  return report;
}

}  // namespace millrace::loop
