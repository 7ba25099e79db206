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
    if (!seat.here() && !seat.remote() && std::find(out.begin(), out.end(), seat.process) == out.end())
      out.push_back(seat.process);
  }
  return out;
}

std::vector<TextSeat> TextPlan::seats_of(std::string_view process) const {
  std::vector<TextSeat> out;
  for (const TextSeat& seat : seats) {
    if (seat.process == process && !seat.remote()) out.push_back(seat);
  }
  return out;
}

bool TextPlan::over_hosts() const {
  return std::any_of(seats.begin(), seats.end(), [](const TextSeat& seat) { return seat.remote(); });
}

const TextSeat* TextPlan::find(std::string_view stage, uint32_t replica) const {
  for (const TextSeat& seat : seats) {
    if (seat.stage == stage && static_cast<uint32_t>(seat.replica) == replica) return &seat;
  }
  return nullptr;
}

const TextSeat* TextPlan::find(std::string_view name) const {
  for (const TextSeat& seat : seats) {
    if (seat.name == name) return &seat;
  }
  return nullptr;
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
                            generate->line_of("next"), generate->name, detokenize->name);
  }
  if (detokenize->replicas != 1) {
    return invalid_argument("{}:{}: stage '{}' has {} replicas; wanted 1: it keeps each request's text", file,
                            detokenize->line_of("replicas"), detokenize->name, detokenize->replicas);
  }
  if (dp > 0 && !generate->host.empty()) {
    return invalid_argument(
        "{}:{}: --dp is {} and stage '{}' is on host '{}'; wanted its `replicas` in the file, which all hosts read",
        file, generate->line, dp, generate->name, generate->host);
  }
  if (generate->key_lines.contains("replica_policy")) {
    return invalid_argument("{}:{}: replica_policy of stage '{}' is not used by text serving; wanted --dp-policy", file,
                            generate->line_of("replica_policy"), generate->name);
  }
  TextPlan plan;
  const int replicas = dp > 0 ? dp : generate->replicas;
  for (int i = 0; i < replicas; ++i) {
    const std::string name = replica_name(i, replicas);
    // Several schedulers are several processes; in one they would not survive each other.
    std::string process = replicas > 1 && generate->process != kFrontProcess
                              ? fmt::format("{}-{}", generate->process, i)
                              : generate->process;
    plan.seats.push_back({.name = name,
                          .stage = generate->name,
                          .scheduler = true,
                          .replica = i,
                          .process = std::move(process),
                          .host = generate->host});
  }
  plan.seats.push_back(
      {.name = "detokenizer", .stage = detokenize->name, .process = detokenize->process, .host = detokenize->host});
  for (TextSeat& seat : plan.seats) {
    if (single && !seat.remote()) seat.process = kFrontProcess;
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
