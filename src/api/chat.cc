// POST /v1/chat/completions.
#include <nlohmann/json.hpp>

#include "api/chat_prompt.h"
#include "api/fields.h"
#include "api/reply.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

class ChatFormat : public ReplyFormat {
 public:
  ChatFormat(const std::string& model, bool stream) {
    head_ = fmt::format("{{\"id\":\"{}\",\"object\":\"{}\",\"created\":{},\"model\":", make_id("chatcmpl-"),
                        stream ? "chat.completion.chunk" : "chat.completion", unix_seconds());
    json_append_string(head_, model);
    head_ += ",\"choices\":[";
  }

  std::string opening(int index) const override {
    return chunk(index, "\"role\":\"assistant\",\"content\":\"\"", nullptr);
  }
  std::string delta(int index, std::string_view text) const override {
    std::string content = "\"content\":";
    json_append_string(content, text);
    return chunk(index, content, nullptr);
  }
  std::string closing(int index, const wire::Finish& finish) const override { return chunk(index, "", &finish); }
  std::string usage(const wire::Usage& usage) const override { return body("", usage); }

  std::string choice(int index, std::string_view text, const wire::Finish& finish) const override {
    std::string out = fmt::format("{{\"index\":{},\"message\":{{\"role\":\"assistant\",\"content\":", index);
    json_append_string(out, text);
    out += fmt::format(",\"refusal\":null}},\"logprobs\":null,\"finish_reason\":\"{}\",", finish_reason(finish));
    append_matched_stop(out, finish);
    return out + "}";
  }
  std::string body(std::string_view choices, const wire::Usage& usage) const override {
    std::string out = head_;
    out += choices;
    out += "],\"usage\":";
    append_usage(out, usage);
    return out + "}";
  }

 private:
  std::string chunk(int index, std::string_view delta, const wire::Finish* finish) const {
    std::string out = head_;
    fmt::format_to(std::back_inserter(out),
                   "{{\"index\":{},\"delta\":{{{}}},\"logprobs\":null,\"finish_reason\":", index, delta);
    if (finish) {
      fmt::format_to(std::back_inserter(out), "\"{}\",", finish_reason(*finish));
      append_matched_stop(out, *finish);
    } else {
      out += "null";
    }
    return out + "}]}";
  }

  std::string head_;  // everything up to the choices is the same in every chunk
};

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  RETURN_IF_ERROR(check_model(body, model));
  ASSIGN_OR_RETURN(CommonFields fields, read_common(body, model));
  ASSIGN_OR_RETURN(ChatPrompt prompt, read_chat_prompt(body, request.body));

  std::vector<GenerateRequest> requests(1);
  requests[0] = {std::move(prompt), std::move(fields.sampling), fields.max_tokens, std::move(fields.cache_salt)};
  auto reply = std::make_shared<Reply>(
      context.server, context.engine, responder, std::make_unique<ChatFormat>(model.name, fields.stream),
      ReplyOptions{fields.stream, fields.include_usage, fields.continuous_usage}, requests.size());
  reply->start(std::move(requests));
  return ok_status();
}

}  // namespace

void add_chat_routes(ApiContext& context) { add_post_route(context, "/v1/chat/completions", handle); }

}  // namespace millrace::api
