#include "pipeline/lost_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace {

LostRequests::LostRequests(const StageGraph& graph, LiveRequests& requests, Connected connected, Send send)
    : graph_(graph), requests_(requests), connected_(std::move(connected)), send_(std::move(send)) {}

void LostRequests::on_report(std::size_t slot, wire::RequestReport report) {
  if (report.round != round_) return;
  StageRequests& of_stage = reports_[slot];
  for (wire::StageRequest& request : report.requests) of_stage.insert_or_assign(request.id, std::move(request));
}

std::vector<LostRequests::Lost> LostRequests::tick(int64_t now_ms) {
  if (now_ms < next_ms_) return {};
  next_ms_ = now_ms + kRequestProbeMs;
  std::vector<Lost> lost = end_round(now_ms);
  begin_round(now_ms);
  return lost;
}

std::vector<LostRequests::Lost> LostRequests::end_round(int64_t now_ms) {
  std::vector<Lost> lost;
  for (const ReqId id : asked_) {
    LiveRequest* request = requests_.find(id);
    if (request == nullptr || !is_quiet(*request, now_ms)) continue;
    const std::optional<Row> row = row_of(*request);
    if (!row) continue;
    std::string why = why_lost(*request, *row);
    if (why.empty()) {
      request->last_seen_ms = now_ms;  // its stages reported that they work on it
      suspicions_.erase(id);
      continue;
    }
    Suspicion& suspicion = suspicions_[id];
    if (suspicion.last_seen_ms != request->last_seen_ms) suspicion = {.last_seen_ms = request->last_seen_ms};
    if (++suspicion.rounds >= kLostRounds) lost.push_back({id, std::move(why)});
  }
  lost_ += lost.size();
  return lost;
}

// Those of tick()'s last answer have ended or end before the next tick, so asking for them once more does no harm.
void LostRequests::begin_round(int64_t now_ms) {
  ++round_;
  reports_.clear();
  asked_ = requests_.select([&](const LiveRequest& request) { return is_quiet(request, now_ms); });
  if (asked_.size() > wire::kMaxProbedRequests) asked_.resize(wire::kMaxProbedRequests);
  std::erase_if(suspicions_, [this](const auto& entry) { return requests_.find(entry.first) == nullptr; });
  std::map<std::size_t, wire::RequestProbe> probes;
  for (const ReqId id : asked_) {
    for (const std::size_t slot : requests_.find(id)->route) {
      if (slot != Placement::kNone && connected_(slot)) probes[slot].ids.push_back(id);
    }
  }
  for (auto& [slot, probe] : probes) {
    probe.round = round_;
    send_(slot, std::move(probe));
  }
}

// Something has yet to come of it, and has not come for a while. What waits here for its client is no silence of the
// stages: all terminals that are open have ended then, or go on sending when the client takes it.
bool LostRequests::is_quiet(const LiveRequest& request, int64_t now_ms) const {
  if (request.state != RequestState::kRunning || request.answer.over) return false;
  if (now_ms - request.last_seen_ms < kQuietMs) return false;
  return std::any_of(request.answer.streams.begin(), request.answer.streams.end(),
                     [](const auto& stream) { return !stream.second.has_ended(); });
}

// Nothing: a stage has not answered. A replica that is not connected has lost what it had.
std::optional<LostRequests::Row> LostRequests::row_of(const LiveRequest& request) const {
  Row row(graph_.size(), nullptr);
  for (std::size_t stage = 0; stage < row.size(); ++stage) {
    const std::size_t slot = request.route[stage];
    if (slot == Placement::kNone || !connected_(slot)) continue;
    const auto report = reports_.find(slot);
    if (report == reports_.end()) return std::nullopt;
    const auto found = report->second.find(request.id);
    if (found != report->second.end()) row[stage] = &found->second;
  }
  return row;
}

std::string LostRequests::why_lost(const LiveRequest& request, const Row& row) const {
  using State = wire::StageRequestState;
  bool works = false;
  for (std::size_t stage = 0; stage < row.size(); ++stage) {
    if (row[stage] == nullptr) continue;
    if (row[stage]->state == State::kFailed) return fmt::format("'{}' has failed", graph_.name_of(stage));
    works = works || row[stage]->state == State::kWorking;
    for (const std::string& target : row[stage]->targets) {
      const std::size_t to = graph_.index_of(target);
      if (to >= row.size() || (request.complete_inputs[to] & stage_bit(stage)) != 0) continue;
      const wire::StageRequest* receiver = row[to];
      if (receiver != nullptr && receiver->state == State::kFinished) continue;
      if (receiver != nullptr && contains(receiver->sources, graph_.name_of(stage))) continue;
      return fmt::format("'{}' has sent to '{}', where nothing has come", graph_.name_of(stage), target);
    }
  }
  return works ? "" : "no stage works on the request";
}

}  // namespace millrace
