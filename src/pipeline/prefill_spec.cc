#include "pipeline/prefill_spec.h"

#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "pipeline/spec_errors.h"
#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

void check_source(const PipelineSpec& spec, const StageSpec& stage, SpecErrors& errors) {
  const int line = stage.line_of("prefill_from");
  if (stage.worker != kGenerateWorker) {
    return errors.add(line, "stage '{}' has prefill_from and the worker {}; wanted the worker {}", stage.name,
                      stage.worker, kGenerateWorker);
  }
  if (stage.layers) {
    return errors.add(line,
                      "stage '{}' has prefill_from and layers; wanted one of them: a layer split transfers no pages",
                      stage.name);
  }
  const StageSpec* source = spec.find(stage.prefill_from);
  if (source == nullptr) {
    std::vector<std::string_view> names;
    for (const StageSpec& one : spec.stages) names.push_back(one.name);
    return errors.add(line, "prefill_from of stage '{}' is '{}'; wanted the name of a stage{}", stage.name,
                      stage.prefill_from, suggestion(stage.prefill_from, names));
  }
  if (!source->readable || source->computes_prompts()) return;
  errors.add(line, "prefill_from of stage '{}' is '{}', whose worker is '{}'; wanted one of the worker {}", stage.name,
             source->name, source->worker, kPrefillWorker);
}

}  // namespace

void check_prefill(const PipelineSpec& spec, SpecErrors& errors) {
  std::map<std::string, const StageSpec*> takers;
  for (const StageSpec& stage : spec.stages) {
    if (stage.prefill_from.empty()) continue;
    if (stage.readable) check_source(spec, stage, errors);
    const auto [before, fresh] = takers.emplace(stage.prefill_from, &stage);
    if (fresh) continue;
    errors.add(stage.line_of("prefill_from"), "prefill_from of the stages '{}' and '{}' is '{}'; wanted one of them",
               before->second->name, stage.name, stage.prefill_from);
  }
  const bool all_read =
      std::all_of(spec.stages.begin(), spec.stages.end(), [](const auto& one) { return one.readable; });
  for (const StageSpec& stage : spec.stages) {
    // A stage that could not be read may be the one that takes them.
    if (!all_read || !stage.computes_prompts() || takers.contains(stage.name)) continue;
    errors.add(stage.line, "stage '{}' is prefill_from of no stage; wanted one, whose prompts it computes", stage.name);
  }
}

Status set_prefill_replicas(PipelineSpec& spec, const std::string& file, int replicas) {
  const auto generate = std::find_if(spec.stages.begin(), spec.stages.end(),
                                     [](const StageSpec& stage) { return stage.worker == kGenerateWorker; });
  CHECK(generate != spec.stages.end());
  if (spec.over_hosts()) {
    return invalid_argument(
        "{}:{}: --prefill is {} and the pipeline is over several hosts; wanted a stage of worker {} in the file, which "
        "all hosts read",
        file, generate->line, replicas, kPrefillWorker);
  }
  if (generate->layers) {
    return invalid_argument("{}:{}: --prefill is {} and stage '{}' has layers; wanted one of them", file,
                            generate->line_of("layers"), replicas, generate->name);
  }
  if (!generate->prefill_from.empty()) {
    // There is one: check_source() has found it.
    std::find_if(spec.stages.begin(), spec.stages.end(), [&](const StageSpec& stage) {
      return stage.name == generate->prefill_from;
    })->replicas = replicas;
    return ok_status();
  }
  const std::string name(kPrefillWorker);
  if (spec.find(name) != nullptr) {
    return invalid_argument("{}:{}: --prefill is {} and there is a stage '{}'; wanted another name for it", file,
                            spec.find(name)->line, replicas, name);
  }
  generate->prefill_from = name;
  // A process of its own: in the server's, a prompt would delay the steps that it is to leave alone.
  spec.stages.push_back({.name = name, .worker = name, .process = name, .replicas = replicas});
  return ok_status();
}

}  // namespace millrace
