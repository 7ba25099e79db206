#include "stages/stage_loop_config.h"

#include <algorithm>

#include "stages/stage_graph.h"

namespace millrace {

namespace {

std::vector<std::string> each_once(std::vector<std::string> names, const std::vector<std::string>& more) {
  for (const std::string& name : more) {
    if (!contains(names, name)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> StageLoopConfig::sources() const { return each_once(payload_from, stream_from); }
std::vector<std::string> StageLoopConfig::targets() const { return each_once(spec.next, spec.stream_to); }

Result<StageLoopConfig> make_loop_config(const std::vector<StageSpec>& stages, const std::string& entry,
                                         const std::string& stage) {
  StageLoopConfig config;
  bool found = false;
  for (const StageSpec& spec : stages) {
    config.replicas[spec.name] = static_cast<uint32_t>(std::max(spec.replicas, 1));
    if (contains(spec.next, stage)) config.payload_from.push_back(spec.name);
    if (contains(spec.stream_to, stage)) config.stream_from.push_back(spec.name);
    if (spec.name == stage) config.spec = spec, config.stalled_ms = spec.stalled_ms, found = true;
  }
  if (!found) return error(StatusCode::kNotFound, "no stage '{}' in the pipeline", stage);
  const StageGraph graph(stages, entry);
  for (const auto* targets : {&config.spec.next, &config.spec.stream_to}) {
    for (const std::string& target : *targets) config.reaches[target] = graph.terminals_of(target);
  }
  for (const StageSpec& spec : stages) {
    if (contains(config.spec.stream_to, spec.name)) config.target_workers[spec.name] = spec.worker;
  }
  config.entry = stage == entry;
  config.self.stage = stage;
  return config;
}

}  // namespace millrace
