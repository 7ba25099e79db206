// POST /v1/completions.
#include <nlohmann/json.hpp>

#include "api/fields.h"
#include "api/prompts.h"
#include "api/reply.h"
#include "api/routes.h"

namespace millrace::api {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's default for this endpoint

class TextFormat : public ReplyFormat {
 public:
  explicit TextFormat(const std::string& model) {
    head_ = fmt::format("{{\"id\":\"{}\",\"object\":\"text_completion\",\"created\":{},\"model\":", make_id("cmpl-"),
                        unix_seconds());
    json_append_string(head_, model);
    head_ += ",\"choices\":[";
  }

  std::string opening(int) const override { return ""; }
  std::string delta(int index, std::string_view text) const override { return chunk(index, text, nullptr); }
  std::string closing(int index, const wire::Finish& finish) const override { return chunk(index, "", &finish); }
  std::string usage(const wire::Usage& usage) const override { return body("", usage); }

  std::string choice(int index, std::string_view text, const wire::Finish& finish) const override {
    return one_choice(index, text, &finish);
  }
  std::string body(std::string_view choices, const wire::Usage& usage) const override {
    std::string out = head_;
    out += choices;
    out += "],\"usage\":";
    append_usage(out, usage);
    return out + "}";
  }

 private:
  static std::string one_choice(int index, std::string_view text, const wire::Finish* finish) {
    std::string out = fmt::format("{{\"index\":{},\"text\":", index);
    json_append_string(out, text);
    out += ",\"logprobs\":null,\"finish_reason\":";
    if (finish) {
      fmt::format_to(std::back_inserter(out), "\"{}\",", finish_reason(*finish));
      append_matched_stop(out, *finish);
    } else {
      out += "null";
    }
    return out + "}";
  }
  std::string chunk(int index, std::string_view text, const wire::Finish* finish) const {
    return head_ + one_choice(index, text, finish) + "]}";
  }

  std::string head_;
};

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  RETURN_IF_ERROR(check_model(body, model));
  ASSIGN_OR_RETURN(CommonFields fields, read_common(body, model));
  ASSIGN_OR_RETURN(std::vector<Prompt> prompts, read_prompts(body, model.vocab_size));

  std::vector<GenerateRequest> requests;
  for (Prompt& prompt : prompts) {
    requests.push_back(
        {std::move(prompt), fields.sampling, fields.max_tokens.value_or(kDefaultMaxTokens), fields.cache_salt});
  }
  auto reply = std::make_shared<Reply>(
      context.server, context.engine, responder, std::make_unique<TextFormat>(model.name),
      ReplyOptions{fields.stream, fields.include_usage, fields.continuous_usage}, requests.size());
  reply->start(std::move(requests));
  return ok_status();
}

}  // namespace

void add_completions_routes(ApiContext& context) { add_post_route(context, "/v1/completions", handle); }

}  // namespace millrace::api
