#include "stages/text_inputs.h"

#include "stages/generating/token_values.h"

namespace millrace {
namespace {

// The parts of one answer, put together for its result.
class Collected {
 public:
  Collected(Value rest, PipelineEngine::Sink sink) : rest_(std::move(rest)), sink_(std::move(sink)) {}

  SinkAnswer on_event(RequestEvent& event) {
    if (auto* end = std::get_if<RequestEvent::End>(&event.body); end && end->status.ok()) end->result = result();
    const SinkAnswer answer = sink_(event);
    if (answer == SinkAnswer::kTaken && event.text()) add(*event.text());
    return answer;
  }

 private:
  void add(const wire::TextDelta& delta) {
    text_ += delta.text;
    ids_.insert(ids_.end(), delta.tokens.begin(), delta.tokens.end());
    if (delta.finish) finish_ = *delta.finish, usage_ = delta.usage;
  }

  Value result() const {
    Value out = rest_;
    set_result(out, ids_, finish_, usage_);
    out.set("text", text_);
    return out;
  }

  const Value rest_;
  const PipelineEngine::Sink sink_;
  std::string text_;
  std::vector<int32_t> ids_;
  wire::Finish finish_;
  wire::Usage usage_;
};

}  // namespace

ReqId TextInputs::submit(PipelineRequest request, Sink sink) {
  const auto read = [&]() -> Result<GenerateRequest> {
    ASSIGN_OR_RETURN(Prompt prompt, read_prompt_(request.inputs));
    ASSIGN_OR_RETURN(GenerateRequest out, read_request_(request.inputs));
    out.prompt = std::move(prompt);
    return out;
  };
  Result<GenerateRequest> generate = read();
  auto collected = std::make_shared<Collected>(
      without(request.inputs, {"text", "messages", kIdsKey, "sampling", "add_special_tokens"}), std::move(sink));
  // The inputs have become a prompt, which follows when it is tokenized.
  PipelineRequest accepted{.options = std::move(request.options)};
  accepted.options.inputs_follow = true;
  if (!accepted.options.terminals && !terminal_.empty()) accepted.options.terminals = std::vector{terminal_};
  const ReqId id =
      pipeline_.submit(std::move(accepted), [collected](RequestEvent& event) { return collected->on_event(event); });
  if (generate.ok()) {
    engine_.start(id, std::move(generate).value());
  } else {
    pipeline_.set_prompt(id, generate.status(), {});
  }
  return id;
}

}  // namespace millrace
