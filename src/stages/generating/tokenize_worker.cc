#include <utility>

#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"

namespace millrace {
namespace {

class TokenizeWorker : public Worker {
 public:
  TokenizeWorker(PromptEncoder encoder, ReadPrompt read_prompt, uint64_t text_checksum)
      : encoder_(std::move(encoder)), read_prompt_(std::move(read_prompt)), text_checksum_(text_checksum) {}

  void start(ReqId id, Value payload, Emit& emit) override {
    Result<Value> result = tokenize(payload);
    if (result.ok()) return emit.result(id, std::move(result).value());
    emit.fail(id, result.status());
  }
  void drop(ReqId) override {}
  bool describe(wire::StageStatus& status) const override {
    status.text_checksum = text_checksum_;
    return true;
  }

 private:
  Result<Value> tokenize(const Value& payload) const {
    if (!payload.is<ValueMap>()) {
      return invalid_argument("inputs is a {}; wanted a map with text or messages", kind_name(payload));
    }
    ASSIGN_OR_RETURN(const Prompt prompt, read_prompt_(payload));
    ASSIGN_OR_RETURN(const PromptEncoder::Ids ids, encoder_.encode(prompt));
    Value out = without(payload, {"text", "messages", "chat_template_kwargs", "add_generation_prompt",
                                  "continue_final_message", "add_special_tokens", kIdsKey});
    out.set(std::string(kIdsKey), ids_tensor(ids));
    return out;
  }

  const PromptEncoder encoder_;
  const ReadPrompt read_prompt_;
  const uint64_t text_checksum_;
};

}  // namespace

std::unique_ptr<Worker> make_tokenize_worker(PromptEncoder encoder, ReadPrompt read_prompt, uint64_t text_checksum) {
  return std::make_unique<TokenizeWorker>(std::move(encoder), std::move(read_prompt), text_checksum);
}

}  // namespace millrace
