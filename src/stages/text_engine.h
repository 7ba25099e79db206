// TextEngine: the Engine of a pipeline whose entry stage generates and whose terminal makes text of the tokens.
//
// Way of a request: submit() -> accepted by the pipeline, which keeps its deadline and its one end -> tokenizer stage
// -> set_prompt() with the ids and what is known for its placement -> token deltas and text deltas, stage by stage ->
// the request's answer. It keeps no table of its own: what is live, the pipeline knows.
//
// Owner: app/. Both references must outlive it. Thread safety: everything from any thread, as in stages/engine.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stages/engine.h"
#include "stages/pipeline_engine.h"
#include "stages/tokenizer_stage.h"

namespace millrace {

struct TextEngineOptions {
  int64_t queue_timeout_ms = 0;  // from the scheduler's acceptance to the first step; 0: none but the request's own
  int replicas = 1;              // of the generating stage
  bool wants_prefix = false;     // its placement looks at prefixes
  std::string terminal;          // that makes the text; empty: the pipeline has no other
  std::string speech_terminal;   // that makes the sound of answers that are spoken; empty: none are
};

class TextEngine : public Engine {
 public:
  TextEngine(TextEngineOptions options, ModelFacts model, TokenizerStage& tokenizer, PipelineEngine& pipeline);

  ReqId submit(GenerateRequest request, std::shared_ptr<TextAnswer> answer) override;
  // The prompt of a request that the pipeline was given without inputs: tokenizes it and begins the request.
  void start(ReqId id, GenerateRequest request);
  void abort(ReqId id) override { pipeline_.abort(id); }
  void cancel(ReqId id) override { pipeline_.cancel(id); }
  void admin(wire::AdminAction action, int64_t timeout_ms,
             std::function<void(std::vector<wire::AdminReply>)> done) override;
  std::string token_bytes(int32_t id) const override { return tokenizer_.token_bytes(id); }
  void tokenize(Prompt prompt, std::function<void(Result<TokenizeReply>)> done) override;
  void detokenize(std::vector<int32_t> ids, bool skip_special_tokens,
                  std::function<void(Result<std::string>)> done) override;
  WeightControl* weights() const override { return pipeline_.weights(); }
  const ModelFacts& model() const override { return model_; }
  // Of several replicas each has its number in its name: "scheduler-1".
  Health health() const override;
  std::vector<StageLink> links() const override { return pipeline_.links(); }

 private:
  std::optional<std::vector<std::string>> terminals_of(const GenerateRequest& request) const;
  void tokenized(ReqId id, GenerateRequest request, const PromptMediaList& media, Result<std::vector<int32_t>> ids);
  // What the prompt has of reasoning. sampling.parsing is set.
  void find_reasoning(const std::vector<int32_t>& prompt, wire::SamplingParams& sampling) const;
  Result<wire::TokenizedRequest> make(GenerateRequest& request, const PromptMediaList& media,
                                      std::vector<int32_t> ids) const;
  static ReplicaRouter::Prefix prefix_of(const wire::TokenizedRequest& request);

  const TextEngineOptions options_;
  const ModelFacts model_;
  TokenizerStage& tokenizer_;
  PipelineEngine& pipeline_;
};

}  // namespace millrace
