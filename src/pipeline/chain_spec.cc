#include "pipeline/chain_spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/nearest.h"
#include "pipeline/spec_errors.h"
#include "pipeline/text_pipeline.h"
#include "wire/limits.h"

namespace millrace {
namespace {

// All faults of a file are reported at once, so each check must bear what an earlier one has found: a stage that could
// not be read, a name that leads nowhere.
class ChainChecker {
 public:
  ChainChecker(const PipelineSpec& spec, SpecErrors& errors) : spec_(spec), errors_(errors) {}

  void run() {
    for (const StageSpec& stage : spec_.stages) {
      if (stage.readable) keys(stage);
    }
    for (const StageSpec& stage : spec_.stages) {
      if (stage.readable && !stage.layers_to.empty()) link(stage);
    }
    // Where a stage could not be read, what leads to the others is not known.
    if (std::all_of(spec_.stages.begin(), spec_.stages.end(), [](const auto& stage) { return stage.readable; })) {
      reach();
    }
  }

 private:
  void keys(const StageSpec& stage) {
    const bool rows = stage.computes_rows(), first = stage.worker == kGenerateWorker;
    if (!rows && !first && (stage.layers || !stage.layers_to.empty())) {
      const char* key = stage.layers ? "layers" : "layers_to";
      return errors_.add(stage.line_of(key), "stage '{}' has {} and the worker '{}'; wanted the worker {} or {}",
                         stage.name, key, stage.worker, kGenerateWorker, kLayersWorker);
    }
    if (!stage.layers && (rows || !stage.layers_to.empty())) {
      return errors_.add(stage.line_of("worker"), "stage '{}' has no layers; wanted layers: [BEGIN, END]", stage.name);
    }
    if (!stage.layers) return;
    if (first && stage.layers_to.empty()) {
      errors_.add(stage.line_of("layers"),
                  "stage '{}' has layers and no layers_to; wanted the stage with the next range, or no layers",
                  stage.name);
    }
    if (first && stage.layers->begin != 0) {
      errors_.add(stage.line_of("layers"), "layers of stage '{}' begin at {}; wanted 0: it has the first range",
                  stage.name, stage.layers->begin);
    }
    if (!rows) return;
    if (stage.layers->count() == 0) {
      errors_.add(stage.line_of("layers"),
                  "layers of stage '{}' are [{}, {}]; wanted one at least: only the first range may be empty",
                  stage.name, stage.layers->begin, stage.layers->end);
    }
  }

  void link(const StageSpec& from) {
    const int line = from.line_of("layers_to");
    const StageSpec* to = spec_.find(from.layers_to);
    if (to == nullptr) {
      std::vector<std::string_view> names;
      for (const StageSpec& stage : spec_.stages) names.push_back(stage.name);
      return errors_.add(line, "layers_to of stage '{}' is '{}'; wanted the name of a stage{}", from.name,
                         from.layers_to, suggestion(from.layers_to, names));
    }
    if (!to->readable) return;
    if (!to->computes_rows()) {
      return errors_.add(line, "layers_to of stage '{}' is '{}', whose worker is '{}'; wanted one of the worker {}",
                         from.name, to->name, to->worker, kLayersWorker);
    }
    // One sender for each range, so that following senders_ back is one path. reach() relies on it.
    if (const auto [before, fresh] = senders_.emplace(to, &from); !fresh) {
      return errors_.add(line, "layers_to of the stages '{}' and '{}' is '{}'; wanted one of them",
                         before->second->name, from.name, to->name);
    }
    // Replica n of a range sends to replica n of the next: each chain has its own page tables.
    if (from.replicas != to->replicas) {
      errors_.add(to->line_of("replicas"), "stage '{}' has {} replicas; wanted {}, as '{}' before it has", to->name,
                  to->replicas, from.replicas, from.name);
    }
    if (!from.layers || !to->layers || from.layers->end == to->layers->begin) return;
    const bool gap = from.layers->end < to->layers->begin;
    errors_.add(to->line_of("layers"), "layers of stage '{}' begin at {}, {}; wanted {}, where those of '{}' end",
                to->name, to->layers->begin, gap ? "which leaves a gap" : "which overlap", from.layers->end, from.name);
  }

  // Those that no first range leads to: the first of a chain without one, and the stages of a cycle.
  void reach() {
    for (const StageSpec& stage : spec_.stages) {
      if (!stage.computes_rows()) continue;
      std::vector<std::string> path = {stage.name};
      const StageSpec* at = &stage;
      // Ends at a first range, back at `stage`, or after as many steps as there are stages: then `stage` is behind a
      // cycle, which the stages of that report.
      while (senders_.contains(at) && (at = senders_.at(at)) != &stage && path.size() <= spec_.stages.size()) {
        path.insert(path.begin(), at->name);
      }
      if (at == &stage && path.size() > 1) {
        path.push_back(path.front());
        return errors_.add(stage.line_of("layers_to"), "layers_to of the stages form a cycle: {}",
                           fmt::join(path, " -> "));
      }
      if (at == &stage && senders_.contains(at)) {
        return errors_.add(stage.line_of("layers_to"), "layers_to of stage '{}' is the stage itself", stage.name);
      }
      if (at == &stage) {
        errors_.add(stage.line, "stage '{}' is in layers_to of no stage; wanted one, with the layers before {}",
                    stage.name, stage.layers ? stage.layers->begin : 0);
      }
      if (path.size() > wire::kMaxRanges) {
        errors_.add(stage.line, "stage '{}' is range {} of its chain; wanted at most {}", stage.name, path.size(),
                    wire::kMaxRanges);
      }
    }
  }

  const PipelineSpec& spec_;
  SpecErrors& errors_;
  std::map<const StageSpec*, const StageSpec*> senders_;  // of rows, by receiver
};

}  // namespace

void check_chains(const PipelineSpec& spec, SpecErrors& errors) { ChainChecker(spec, errors).run(); }

std::vector<const StageSpec*> chain_of(const PipelineSpec& spec, const StageSpec& stage) {
  std::vector<const StageSpec*> out;
  if (!stage.layers) return out;
  const StageSpec* first = &stage;
  // Back to the first range. It ends, as check_chains() has refused cycles.
  for (bool moved = true; moved;) {
    moved = false;
    for (const StageSpec& from : spec.stages) {
      if (from.layers_to == first->name) first = &from, moved = true;
    }
  }
  for (; first != nullptr; first = first->layers_to.empty() ? nullptr : spec.find(first->layers_to)) {
    out.push_back(first);
  }
  return out;
}

}  // namespace millrace
