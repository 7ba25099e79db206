#include "api/prompt_forms.h"

#include "api/gather.h"

namespace millrace::api {

void with_prompt_texts(ApiContext& context, const http::ResponderPtr& responder, const std::vector<Prompt>& prompts,
                       bool skip_special_tokens, Gather<std::string>::Done done) {
  auto texts = std::make_shared<Gather<std::string>>(context.server, responder, prompts.size(), std::move(done));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (const auto* text = std::get_if<TextPrompt>(&prompts[i])) {
      texts->on_result(i, text->text);
    } else {
      context.engine.detokenize(std::get<TokenPrompt>(prompts[i]).ids, skip_special_tokens,
                                [texts, i](Result<std::string> text) { texts->on_result(i, std::move(text)); });
    }
  }
}

void with_prompt_ids(ApiContext& context, const http::ResponderPtr& responder, std::vector<Prompt> prompts,
                     std::optional<int64_t> last, Gather<std::vector<int32_t>>::Done done) {
  auto ids = std::make_shared<Gather<std::vector<int32_t>>>(context.server, responder, prompts.size(), std::move(done));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto on_ids = [ids, i, last](std::vector<int32_t> all) {
      const auto excess = last ? static_cast<int64_t>(all.size()) - *last : 0;
      if (excess > 0) all.erase(all.begin(), all.begin() + excess);
      ids->on_result(i, std::move(all));
    };
    if (auto* known = std::get_if<TokenPrompt>(&prompts[i])) {
      on_ids(std::move(known->ids));
      continue;
    }
    context.engine.tokenize(std::move(prompts[i]), [ids, i, on_ids](Result<TokenizeReply> reply) {
      if (!reply.ok()) return ids->on_result(i, reply.status());
      on_ids(std::move(reply->ids));
    });
  }
}

std::vector<Prompt> prompts_of(const PromptIds& ids) {
  std::vector<Prompt> out;
  for (const std::vector<int32_t>& one : ids) out.emplace_back(TokenPrompt{one});
  return out;
}

}  // namespace millrace::api
