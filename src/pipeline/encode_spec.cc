// A stage `generate` whose pictures and audio another stage encodes (encode_from), in a pipeline's file. Features come
// from it; payloads never do.
#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "pipeline/spec.h"
#include "pipeline/spec_errors.h"
#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

void check_encoder(const PipelineSpec& spec, const StageSpec& stage, SpecErrors& errors) {
  const int line = stage.line_of("encode_from");
  if (stage.worker != kGenerateWorker) {
    return errors.add(line, "stage '{}' has encode_from and the worker {}; wanted the worker {}", stage.name,
                      stage.worker, kGenerateWorker);
  }
  if (stage.layers || !stage.prefill_from.empty()) {
    return errors.add(line, "stage '{}' has encode_from and {}; wanted one of them", stage.name,
                      stage.layers ? "layers" : "prefill_from");
  }
  const StageSpec* encoder = spec.find(stage.encode_from);
  if (encoder == nullptr) {
    std::vector<std::string_view> names;
    for (const StageSpec& one : spec.stages) names.push_back(one.name);
    return errors.add(line, "encode_from of stage '{}' is '{}'; wanted the name of a stage{}", stage.name,
                      stage.encode_from, suggestion(stage.encode_from, names));
  }
  if (!encoder->readable || encoder->encodes_media()) return;
  errors.add(line, "encode_from of stage '{}' is '{}', whose worker is '{}'; wanted one of the worker {}", stage.name,
             encoder->name, encoder->worker, kEncodeWorker);
}

}  // namespace

void check_encode(const PipelineSpec& spec, SpecErrors& errors) {
  std::map<std::string, const StageSpec*> takers;
  for (const StageSpec& stage : spec.stages) {
    if (stage.encode_from.empty()) continue;
    if (stage.readable) check_encoder(spec, stage, errors);
    const auto [before, fresh] = takers.emplace(stage.encode_from, &stage);
    if (fresh) continue;
    errors.add(stage.line_of("encode_from"), "encode_from of the stages '{}' and '{}' is '{}'; wanted one of them",
               before->second->name, stage.name, stage.encode_from);
  }
  const bool all_read =
      std::all_of(spec.stages.begin(), spec.stages.end(), [](const auto& one) { return one.readable; });
  for (const StageSpec& stage : spec.stages) {
    if (!all_read || !stage.encodes_media() || takers.contains(stage.name)) continue;
    errors.add(stage.line, "stage '{}' is encode_from of no stage; wanted one, whose media it encodes", stage.name);
  }
}

}  // namespace millrace
