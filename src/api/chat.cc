// POST /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/choices.h"
#include "api/fields.h"
#include "api/logprobs.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(const Engine& engine, std::string head, bool logprobs)
      : engine_(engine), logprobs_(logprobs), head_(std::move(head)) {}

  void opening(int index, EventWriter& out) override {
    append_chunk(out, index, [](std::string& delta) { delta += "\"role\":\"assistant\",\"content\":\"\""; });
  }
  void events(const ChoiceState& choice, EventWriter& out) override {
    if (!choice.text.empty() || (logprobs_ && !choice.logprobs.empty())) {
      const auto content = [&](std::string& delta) {
        delta += "\"content\":";
        json_append_string(delta, choice.text);
      };
      append_chunk(out, choice.index, content, &choice);
    }
    if (choice.finish)
      append_chunk(
          out, choice.index, [](std::string&) {}, nullptr, &*choice.finish);
  }

  std::string choice(const ChoiceState& choice) override {
    std::string out = fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", choice.index);
    json_append_string(out, choice.text);
    out += ",\"refusal\":null},\"logprobs\":";
    append_logprobs(out, &choice);
    append_end(out, &*choice.finish);
    return out + "}";
  }
  std::string body(std::string_view choices, const wire::Usage& usage) override {
    std::string out = head_;
    out += choices;
    out += "],\"usage\":";
    append_usage(out, usage);
    return out + "}";
  }

 private:
  // Without a choice: none.
  void append_logprobs(std::string& out, const ChoiceState* choice) const {
    if (logprobs_ && choice) {
      append_chat_logprobs(out, engine_, choice->logprobs);
    } else {
      out += "null";
    }
  }
  template <typename Delta>
  void append_chunk(EventWriter& writer, int index, const Delta& delta, const ChoiceState* with_logprobs = nullptr,
                    const wire::Finish* finish = nullptr) const {
    std::string& out = writer.begin();
    out += head_;
    out += "{\"index\":";
    append_integer(out, index);
    out += ",\"delta\":{";
    delta(out);
    out += "},\"logprobs\":";
    append_logprobs(out, with_logprobs);
    append_end(out, finish);
    out += "}]}";
    writer.end();
  }

  const Engine& engine_;
  const bool logprobs_;
  const std::string head_;  // everything up to the choices is the same in every chunk
};

// `logprobs` is a switch here, and `top_logprobs` a count that needs it.
Status read_chat_logprobs(const Json& body, wire::SamplingParams& out) {
  bool wanted = false;
  RETURN_IF_ERROR(json_read(body, "logprobs", wanted));
  std::optional<int64_t> top;
  RETURN_IF_ERROR(read_integer(body, "top_logprobs", 0, kMaxClientTopLogprobs, top));
  if (top.value_or(0) > 0 && !wanted) {
    return invalid_argument("top_logprobs is {} without logprobs: true; wanted both or neither", *top);
  }
  if (wanted) out.top_logprobs = static_cast<int32_t>(top.value_or(0));
  return ok_status();
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  ASSIGN_OR_RETURN(const std::string name, context.names.read(body));
  ASSIGN_OR_RETURN(CommonFields fields, read_common(body, model, kOpenAiDialect));
  RETURN_IF_ERROR(read_rank(request, fields.request));
  RETURN_IF_ERROR(refuse_unless(body, "best_of", 1));
  RETURN_IF_ERROR(refuse_unless(body, "echo", false));
  RETURN_IF_ERROR(read_chat_logprobs(body, fields.sampling.params));
  const auto n = static_cast<std::size_t>(fields.sampling.n);
  RETURN_IF_ERROR(check_prompt_volume(request.body.size(), n, "n"));
  RETURN_IF_ERROR(check_logprob_volume(fields.sampling.params, fields.sampling.max_tokens, n, model));
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, request.body));

  const bool logprobs = fields.sampling.params.top_logprobs >= 0;
  const std::string id = fields.rid.empty() ? make_id("chatcmpl-") : fields.rid;
  ReplyOptions options{fields.stream, fields.include_usage, fields.continuous_usage};
  options.token_events = logprobs;
  options.choices_per_prompt = n;
  std::vector<Prompt> prompts;
  prompts.emplace_back(std::move(prompt));
  std::string head =
      openai_head(fields.stream ? "chat.completion.chunk" : "chat.completion", id, name, context.version);
  auto reply = std::make_shared<Reply>(
      context, responder, std::make_unique<ChatFormat>(context.engine, std::move(head), logprobs), options);
  reply->start(make_requests(std::move(prompts), {&fields.sampling, 1}, fields.request, n), {{id, 0, n}});
  return ok_status();
}

}  // namespace

void add_chat_routes(ApiContext& context) {
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) add_post_route(context, path, handle);
}

}  // namespace millrace::api
