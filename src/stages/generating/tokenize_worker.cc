#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"

namespace millrace {

std::unique_ptr<Worker> make_tokenize_worker(PromptEncoder encoder, ReadPrompt read_prompt) {
  return make_function_worker(
      [encoder = std::move(encoder), read = std::move(read_prompt)](ReqId, const Value& payload) -> Result<Value> {
        if (!payload.is<ValueMap>()) {
          return invalid_argument("inputs is a {}; wanted a map with text or messages", kind_name(payload));
        }
        ASSIGN_OR_RETURN(const Prompt prompt, read(payload));
        ASSIGN_OR_RETURN(const PromptEncoder::Ids ids, encoder.encode(prompt));
        Value out = without(payload, {"text", "messages", "chat_template_kwargs", "add_generation_prompt",
                                      "continue_final_message", "add_special_tokens", kIdsKey});
        out.set(std::string(kIdsKey), ids_tensor(ids));
        return out;
      });
}

}  // namespace millrace
