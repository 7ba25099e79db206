#include "pipeline/text_pipeline.h"

#include <algorithm>

#include "pipeline/chain_spec.h"

namespace millrace {
namespace {

bool takes_the_model(const StageSpec& stage) {
  const bool of_text = stage.worker == kGenerateWorker || stage.worker == kDetokenizeWorker || computes_rows(stage);
  return of_text && !stage.args.is<ValueMap>();
}

const StageSpec* find_worker(const PipelineSpec& spec, std::string_view worker) {
  const auto found =
      std::find_if(spec.stages.begin(), spec.stages.end(), [&](const auto& stage) { return stage.worker == worker; });
  return found == spec.stages.end() ? nullptr : &*found;
}

}  // namespace

bool is_text_pipeline(const PipelineSpec& spec) {
  return std::any_of(spec.stages.begin(), spec.stages.end(), takes_the_model);
}

const StageSpec& generating_stage(const PipelineSpec& spec) { return *find_worker(spec, kGenerateWorker); }

Status check_text_pipeline(const PipelineSpec& spec, const std::string& file, int dp) {
  const StageSpec* generate = find_worker(spec, kGenerateWorker);
  const StageSpec* detokenize = find_worker(spec, kDetokenizeWorker);
  const bool all = std::all_of(spec.stages.begin(), spec.stages.end(), takes_the_model);
  const auto rows = std::count_if(spec.stages.begin(), spec.stages.end(), computes_rows);
  if (spec.stages.size() - static_cast<std::size_t>(rows) != 2 || generate == nullptr || detokenize == nullptr ||
      !all) {
    return invalid_argument(
        "{}:1: a text pipeline of {} stages; wanted one of worker {} and one of worker {}, both without args, and "
        "beside them those of worker {}",
        file, spec.stages.size(), kGenerateWorker, kDetokenizeWorker, kLayersWorker);
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
  if (dp > 0 && generate->layers) {
    return invalid_argument("{}:{}: --dp is {} and stage '{}' has layers; wanted `replicas` of each range in the file",
                            file, generate->line_of("layers"), dp, generate->name);
  }
  if (generate->key_lines.contains("replica_policy")) {
    return invalid_argument("{}:{}: replica_policy of stage '{}' is not used by text serving; wanted --dp-policy", file,
                            generate->line_of("replica_policy"), generate->name);
  }
  return ok_status();
}

void override_replicas(PipelineSpec& spec, int dp, const std::string& policy) {
  for (StageSpec& stage : spec.stages) {
    if (stage.worker != kGenerateWorker) continue;
    if (dp > 0) stage.replicas = dp;
    if (const auto parsed = parse_replica_policy(policy); parsed.ok()) stage.replica_policy = *parsed;
  }
}

std::optional<TextShape> text_shape(const PipelineSpec& spec) {
  TextShape out;
  for (const StageSpec& stage : spec.stages) {
    if (stage.worker != kGenerateWorker) continue;
    if (out.generate != nullptr) return std::nullopt;  // which of them answers is not known
    out.generate = &stage;
  }
  if (out.generate == nullptr || !out.generate->wait_for.empty() || !out.generate->route.empty()) return std::nullopt;
  if (out.generate->next.size() != 1 || out.generate->stream_to != out.generate->next) return std::nullopt;
  out.detokenize = spec.find(out.generate->next[0]);
  const StageSpec& text = *out.detokenize;
  if (text.worker != kDetokenizeWorker || !text.terminal || !text.stream_to.empty() || !text.wait_for.empty()) {
    return std::nullopt;
  }
  if (!out.generate->stream_done_to.empty() || !out.generate->project_payload.empty()) return std::nullopt;
  if (spec.entry == out.generate->name) return out;
  out.tokenize = spec.find(spec.entry);
  const std::vector<std::string> wanted = {out.generate->name};
  if (out.tokenize->worker != kTokenizeWorker || out.tokenize->next != wanted) return std::nullopt;
  return out;
}

std::string_view builtin_text_pipeline() {
  static constexpr char kText[] =
#include "pipeline/text_pipeline.inc"
      ;
  return {kText, sizeof kText - 1};
}

Result<PipelineSpec> load_text_or_file(const std::string& file, const Library& library) {
  if (!file.empty()) return load_pipeline(file, library);
  return parse_pipeline(builtin_text_pipeline(), kBuiltinFile, library);
}

}  // namespace millrace
