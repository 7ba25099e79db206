#include "api/echo.h"

#include <mutex>

#include "api/fields.h"

namespace millrace::api {
namespace {

// Collects the texts of several prompts; goes on, on the HTTP thread, when the last one is there.
struct Waiting {
  http::Server& server;
  http::ResponderPtr responder;
  std::shared_ptr<Reply> reply;
  std::size_t choices_per_prompt;
  std::vector<GenerateRequest> requests;
  std::vector<LiveRequests::Name> names;

  std::mutex mutex;  // guards what follows
  std::vector<std::string> texts;
  std::size_t missing = 0;
  Status status;
};

void finish(const std::shared_ptr<Waiting>& waiting) {
  if (!waiting->status.ok()) {
    waiting->responder->send(error_response(field_error(waiting->status)));
    return;
  }
  std::vector<std::string> echo;
  for (const std::string& text : waiting->texts) echo.insert(echo.end(), waiting->choices_per_prompt, text);
  waiting->reply->start(std::move(waiting->requests), std::move(waiting->names), std::move(echo));
}

void arrived(const std::shared_ptr<Waiting>& waiting, std::size_t index, Result<std::string> text) {
  {
    std::lock_guard lock(waiting->mutex);
    if (text.ok()) {
      waiting->texts[index] = std::move(text).value();
    } else {
      waiting->status = text.status();
    }
    if (--waiting->missing > 0) return;
  }
  waiting->server.post([waiting] { finish(waiting); });
}

}  // namespace

void start_with_echo(ApiContext& context, const http::ResponderPtr& responder, std::shared_ptr<Reply> reply,
                     std::size_t choices_per_prompt, bool skip_special_tokens, const std::vector<Prompt>& prompts,
                     std::vector<GenerateRequest> requests, std::vector<LiveRequests::Name> names) {
  auto waiting = std::shared_ptr<Waiting>(new Waiting{context.server, responder, std::move(reply), choices_per_prompt,
                                                      std::move(requests), std::move(names)});
  waiting->texts.resize(prompts.size());
  waiting->missing = prompts.size();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (const auto* text = std::get_if<TextPrompt>(&prompts[i])) {
      arrived(waiting, i, text->text);
    } else {
      context.engine.detokenize(std::get<TokenPrompt>(prompts[i]).ids, skip_special_tokens,
                                [waiting, i](Result<std::string> text) { arrived(waiting, i, std::move(text)); });
    }
  }
}

}  // namespace millrace::api
