#include "stages/loop/request_report.h"

#include <optional>
#include <utility>

namespace millrace::loop {
namespace {

// Before its work has started, only a payload that is fetched, or a put, moves a request by itself. Afterwards the loop
// cannot see whether the worker computes or waits for a stream, so that counts as work.
bool is_working(const LoopRequest& request, const RelayCalls& calls) {
  return request.in.started || request.in.fetches_payload() || calls.is_open(request.id);
}

std::vector<std::string> names_of(Tombstones::Targets bits, const LoopContext& context) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < context.targets.size(); ++i) {
    if ((bits >> i & 1) != 0) out.push_back(context.targets[i]);
  }
  return out;
}

wire::RequestShare share_of(const LoopRequest& request, const LoopContext& context, const RelayCalls& calls) {
  wire::RequestShare share{.id = request.id, .targets = names_of(targets_of(request, context), context)};
  if (!request.is_live()) {
    share.standing = wire::RequestStanding::kFailed;
  } else if (is_working(request, calls)) {
    share.standing = wire::RequestStanding::kWorks;
  }
  for (const auto& [from, edge] : request.in.edges) {
    if (edge.next > 0) share.sources.push_back(from);
  }
  return share;
}

}  // namespace

// Flushed alone: what waits in an open batch has reached no stage.
Tombstones::Targets targets_of(const LoopRequest& request, const LoopContext& context) {
  CHECK(context.targets.size() <= 64);  // kMaxStages
  Tombstones::Targets out = 0;
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
      report.requests.push_back(share_of(*request, context, calls));
    } else if (const std::optional<Ended> how = requests.tombstones().find(id)) {
      using Standing = wire::RequestStanding;
      const Standing standing = *how == Ended::kFinished ? Standing::kFinished : Standing::kFailed;
      report.requests.push_back({.id = id, .standing = standing});
      report.requests.back().targets = names_of(requests.tombstones().targets(id), context);
    }
  }
  return report;
}

}  // namespace millrace::loop
