// TextInputs: named inputs to a text pipeline, whose prompts the server tokenizes: what POST /v1/pipeline runs there. A
// request is {"text"}, {"messages"} or {"ids"}, and {"sampling"}; its chunks are text, its result is
// {"text", "ids", "finish_reason", "usage", ...}, as in a pipeline that has a tokenizer stage (generating/workers.h).
//
// Owner: app/. All references must outlive it. Thread safety: as in stages/pipeline_engine.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stages/generating/workers.h"
#include "stages/pipeline_engine.h"
#include "stages/text_engine.h"

namespace millrace {

class TextInputs : public PipelineEngine {
 public:
  // `terminal`: that of the text, where a request names none; empty: there is no other.
  TextInputs(PipelineEngine& pipeline, TextEngine& engine, std::string terminal, ReadPrompt read_prompt,
             ReadRequest read_request)
      : pipeline_(pipeline),
        engine_(engine),
        terminal_(std::move(terminal)),
        read_prompt_(std::move(read_prompt)),
        read_request_(std::move(read_request)) {}

  ReqId submit(PipelineRequest request, Sink sink) override;
  void set_prompt(ReqId id, Result<wire::TokenizedRequest> request, PlacementHint hint) override {
    pipeline_.set_prompt(id, std::move(request), std::move(hint));
  }
  bool is_live(ReqId id) const override { return pipeline_.is_live(id); }
  void abort(ReqId id) override { pipeline_.abort(id); }
  void cancel(ReqId id) override { pipeline_.cancel(id); }
  void admin(wire::AdminAction action, int64_t timeout_ms,
             std::function<void(std::vector<wire::AdminReply>)> done) override {
    pipeline_.admin(action, timeout_ms, std::move(done));
  }
  Health health() const override { return pipeline_.health(); }
  std::vector<MetricSample> samples() const override { return pipeline_.samples(); }
  int64_t request_timeout_s() const override { return pipeline_.request_timeout_s(); }
  const std::string& name() const override { return pipeline_.name(); }
  const std::string& picture() const override { return pipeline_.picture(); }

 private:
  PipelineEngine& pipeline_;
  TextEngine& engine_;
  const std::string terminal_;
  const ReadPrompt read_prompt_;
  const ReadRequest read_request_;
};

}  // namespace millrace
