#include "pipeline/text_pipeline.h"

#include <algorithm>

namespace millrace {
namespace {

// A stage with args of its own names another model, or none: then this is no pipeline of text serving.
bool takes_the_model(const StageSpec& stage) {
  constexpr std::string_view kWorkers[] = {kGenerateWorker, kDetokenizeWorker, kTalkWorker, kVocodeWorker};
  const bool of_text = std::ranges::find(kWorkers, stage.worker) != std::end(kWorkers) || !stage.takes_payloads();
  return of_text && !stage.args.is<ValueMap>();
}

const StageSpec* find_worker(const PipelineSpec& spec, std::string_view worker) {
  const auto found =
      std::find_if(spec.stages.begin(), spec.stages.end(), [&](const auto& stage) { return stage.worker == worker; });
  return found == spec.stages.end() ? nullptr : &*found;
}

// What speaks is there completely, or not at all.
Status check_stages(const PipelineSpec& spec, const std::string& file) {
  const bool all = std::all_of(spec.stages.begin(), spec.stages.end(), takes_the_model);
  const auto count = [&spec](std::string_view worker) {
    return std::count_if(spec.stages.begin(), spec.stages.end(), [&](const auto& one) { return one.worker == worker; });
  };
  const bool speaks = count(kTalkWorker) == 1 && count(kVocodeWorker) == 1;
  const bool silent = count(kTalkWorker) == 0 && count(kVocodeWorker) == 0;
  const bool generates = count(kGenerateWorker) == 1 && count(kPrefillWorker) <= 1 && count(kEncodeWorker) <= 1;
  if (all && generates && count(kDetokenizeWorker) == 1 && (speaks || silent)) return ok_status();
  return invalid_argument(
      "{}:1: a text pipeline of {} stages; wanted one of worker {} and one of worker {}, both without args, and "
      "beside them those of worker {}, one of each of {} and {} at most, and one of each of {} and {} for answers that "
      "are spoken",
      file, spec.stages.size(), kGenerateWorker, kDetokenizeWorker, kLayersWorker, kPrefillWorker, kEncodeWorker,
      kTalkWorker, kVocodeWorker);
}

// `next` and `stream_to` are these stages, in any sequence.
bool streams_to(const StageSpec& stage, const std::vector<const StageSpec*>& targets) {
  const auto are_targets = [&](const std::vector<std::string>& names) {
    return names.size() == targets.size() &&
           std::ranges::all_of(targets, [&](const StageSpec* target) { return contains(names, target->name); });
  };
  return are_targets(stage.next) && are_targets(stage.stream_to) && stage.route.empty();
}

}  // namespace

bool is_text_pipeline(const PipelineSpec& spec) {
  return std::any_of(spec.stages.begin(), spec.stages.end(), takes_the_model);
}

const StageSpec& generating_stage(const PipelineSpec& spec) { return *find_worker(spec, kGenerateWorker); }

Status check_text_pipeline(const PipelineSpec& spec, const std::string& file, int dp) {
  RETURN_IF_ERROR(check_stages(spec, file));
  const StageSpec* generate = find_worker(spec, kGenerateWorker);
  const StageSpec* detokenize = find_worker(spec, kDetokenizeWorker);
  const StageSpec* talk = find_worker(spec, kTalkWorker);
  std::vector<const StageSpec*> wanted = {detokenize};
  if (talk != nullptr) wanted.push_back(talk);
  if (spec.entry != generate->name || !streams_to(*generate, wanted)) {
    return invalid_argument("{}:{}: stage '{}' must be the entry, and its next and stream_to '{}'{}", file,
                            generate->line_of("next"), generate->name, detokenize->name,
                            talk == nullptr ? "" : fmt::format(" and '{}'", talk->name));
  }
  if (talk != nullptr && !streams_to(*talk, {find_worker(spec, kVocodeWorker)})) {
    return invalid_argument("{}:{}: the next and the stream_to of stage '{}' must be '{}'", file, talk->line_of("next"),
                            talk->name, find_worker(spec, kVocodeWorker)->name);
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
  // By the key's presence: the default policy cannot be distinguished from one that was written.
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
  for (const std::string& name : out.generate->next) {
    // Not null: the spec was checked.
    const StageSpec* next = spec.find(name);
    (next->worker == kTalkWorker ? out.talk : out.detokenize) = next;
  }
  if (out.detokenize == nullptr) return std::nullopt;
  std::vector<const StageSpec*> targets = {out.detokenize};
  if (out.talk != nullptr) targets.push_back(out.talk);
  if (!streams_to(*out.generate, targets)) return std::nullopt;
  if (out.talk != nullptr) {
    if (out.talk->next.size() != 1) return std::nullopt;
    out.vocode = spec.find(out.talk->next[0]);
    if (!streams_to(*out.talk, {out.vocode}) || out.vocode->worker != kVocodeWorker || !out.vocode->terminal) {
      return std::nullopt;
    }
  }
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

std::string_view builtin_pipeline(bool speaks) {
  static constexpr char kText[] =
#include "pipeline/text_pipeline.inc"
      ;
  static constexpr char kOmni[] =
#include "pipeline/omni_pipeline.inc"
      ;
  return speaks ? std::string_view(kOmni, sizeof kOmni - 1) : std::string_view(kText, sizeof kText - 1);
}

const char* builtin_file(bool speaks) { return speaks ? "pipelines/omni.yaml" : "pipelines/text.yaml"; }

Result<PipelineSpec> load_text_or_file(const std::string& file, bool speaks, const Library& library) {
  if (!file.empty()) return load_pipeline(file, library);
  return parse_pipeline(builtin_pipeline(speaks), builtin_file(speaks), library);
}

}  // namespace millrace
