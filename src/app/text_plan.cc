#include "app/text_plan.h"

#include <algorithm>

#include "stages/front.h"

namespace millrace {

bool is_text_pipeline(const PipelineSpec& spec) {
  return std::any_of(spec.stages.begin(), spec.stages.end(),
                     [](const StageSpec& stage) { return stage.worker.starts_with("text."); });
}

std::vector<std::string> TextPlan::children() const {
  std::vector<std::string> out;
  for (const TextSeat& seat : seats) {
    if (!seat.here() && std::find(out.begin(), out.end(), seat.process) == out.end()) out.push_back(seat.process);
  }
  return out;
}

std::vector<TextSeat> TextPlan::seats_of(std::string_view process) const {
  std::vector<TextSeat> out;
  for (const TextSeat& seat : seats) {
    if (seat.process == process) out.push_back(seat);
  }
  return out;
}

Result<TextPlan> plan_text(const PipelineSpec& spec, const std::string& file, int dp, bool single) {
  const StageSpec *generate = nullptr, *detokenize = nullptr;
  for (const StageSpec& stage : spec.stages) {
    if (stage.worker == kGenerateWorker) generate = &stage;
    if (stage.worker == kDetokenizeWorker) detokenize = &stage;
  }
  if (spec.stages.size() != 2 || generate == nullptr || detokenize == nullptr) {
    return invalid_argument("{}:1: a text pipeline of {} stages; wanted one of worker {} and one of worker {}", file,
                            spec.stages.size(), kGenerateWorker, kDetokenizeWorker);
  }
  const std::vector<std::string> wanted = {detokenize->name};
  if (spec.entry != generate->name || generate->next != wanted || generate->stream_to != wanted) {
    return invalid_argument("{}:{}: stage '{}' must be the entry, and its next and stream_to '{}'", file,
                            generate->line, generate->name, detokenize->name);
  }
  if (detokenize->replicas != 1) {
    return invalid_argument("{}:{}: stage '{}' has {} replicas; wanted 1: it keeps each request's text", file,
                            detokenize->line, detokenize->name, detokenize->replicas);
  }
  for (const StageSpec* stage : {generate, detokenize}) {
    if (stage->host.empty()) continue;
    return error(StatusCode::kUnsupported, "{}:{}: stage '{}' is on host '{}'; the text engine's stages share one host",
                 file, stage->line, stage->name, stage->host);
  }
  TextPlan plan;
  const int replicas = dp > 0 ? dp : generate->replicas;
  for (int i = 0; i < replicas; ++i) {
    const std::string name = replica_name(i, replicas);
    // Several schedulers are several processes; in one they would not survive each other.
    std::string process = replicas > 1 && generate->process != kFrontProcess
                              ? fmt::format("{}-{}", generate->process, i)
                              : generate->process;
    plan.seats.push_back({name, true, i, std::move(process)});
  }
  plan.seats.push_back({"detokenizer", false, 0, detokenize->process});
  if (single) {
    for (TextSeat& seat : plan.seats) seat.process = kFrontProcess;
  }
  return plan;
}

std::string_view builtin_text_pipeline() {
  static constexpr char kText[] =
#include "app/text_pipeline.inc"
      ;
  return {kText, sizeof kText - 1};
}

}  // namespace millrace
