// POST /generate: the native endpoint, in the shape that clients of SGLang know.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/choices.h"
#include "api/generate_fields.h"
#include "api/logprobs.h"
#include "api/reply.h"
#include "api/routes.h"
#include "base/status.h"

namespace millrace::api {
namespace {

// The engine names fields as OpenAI's clients do, and has names of its own.
constexpr std::pair<std::string_view, std::string_view> kNativeNames[] = {
    {"max_tokens", "sampling_params.max_new_tokens"},
    {"min_tokens", "sampling_params.min_new_tokens"},
    {"prompt_logprobs_from", "logprob_start_len"}};

ApiError with_native_name(ApiError error) {
  for (const auto& [name, native] : kNativeNames) {
    if (error.param != name) continue;
    if (error.message.starts_with(name)) error.message.replace(0, name.size(), native);
    error.param = native;
    break;
  }
  return error;
}

class GenerateFormat : public ReplyFormat {
 public:
  struct Logprobs {
    bool wanted = false, top = false;
    std::vector<int32_t> ids;
  };

  // `ids` and `logprobs`: of each choice, and of each prompt.
  GenerateFormat(const Engine& engine, const GenerateFields& fields, std::vector<std::string> ids)
      : engine_(engine),
        ids_(std::move(ids)),
        n_(fields.n()),
        list_(fields.batch || fields.n() > 1),
        text_in_logprobs_(fields.text_in_logprobs),
        cumulative_(fields.stream && !fields.stream_output) {
    for (const SamplingFields& one : fields.sampling) {
      logprobs_.push_back({one.params.top_logprobs >= 0, one.params.top_logprobs > 0, one.params.logprob_token_ids});
    }
  }

  void events(const ChoiceState& choice, EventWriter& writer) override {
    std::string& out = writer.begin();
    append_choice(out, choice);
    if (list_) {
      out.pop_back();
      out += ",\"index\":";
      append_integer(out, choice.index);
      out += '}';
    }
    writer.end();
  }

  std::string choice(const ChoiceState& choice) override {
    std::string out;
    append_choice(out, choice);
    return out;
  }
  std::string body(std::string choices, const wire::Usage& /*usage*/) override {
    return list_ ? std::move(choices.insert(0, 1, '[').append(1, ']')) : std::move(choices);
  }
  http::Response error_response(const ApiError& error) const override {
    return ReplyFormat::error_response(with_native_name(error));
  }
  std::string error_event(const ApiError& error) const override {
    return ReplyFormat::error_event(with_native_name(error));
  }

 private:
  void append_choice(std::string& out, const ChoiceState& choice) const {
    CHECK(std::cmp_less(choice.index, ids_.size()));
    out += "{\"text\":";
    json_append_string(out, choice.text);
    fmt::format_to(std::back_inserter(out),
                   ",\"output_ids\":[{}],\"meta_info\":{{\"id\":", fmt::join(choice.tokens, ","));
    json_append_string(out, ids_[static_cast<std::size_t>(choice.index)]);
    out += ",\"finish_reason\":";
    append_finish(out, choice);
    const wire::Usage& usage = choice.usage;
    fmt::format_to(std::back_inserter(out),
                   ",\"prompt_tokens\":{},\"completion_tokens\":{},\"cached_tokens\":{},\"cached_tokens_details\":{{"
                   "\"device\":{},\"host\":{}}},\"transferred_tokens\":{},\"weight_version\":",
                   usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
                   usage.cached_tokens - usage.host_tokens, usage.host_tokens, usage.transferred_tokens);
    append_version(out, engine_.weights(), choice.weight_version);
    if (choice.finish) {
      out += ",\"weight_versions\":[";
      append_spans(out, engine_.weights(), choice.weight_spans, choice.weight_version, usage.completion_tokens);
      out += ']';
    }
    fmt::format_to(std::back_inserter(out), ",\"num_retractions\":{},\"queue_time\":{:.6f},\"e2e_latency\":{:.6f}",
                   usage.retractions, usage.queue_seconds, choice.elapsed_seconds);
    append_logprobs(out, choice);
    out += "}}";
  }
  static void append_finish(std::string& out, const ChoiceState& choice) {
    if (!choice.finish) {
      out += "null";
      return;
    }
    const wire::Finish& finish = *choice.finish;
    if (finish.reason == wire::FinishReason::kLength) {
      fmt::format_to(std::back_inserter(out), "{{\"type\":\"length\",\"length\":{}}}", choice.usage.completion_tokens);
    } else if (finish.reason == wire::FinishReason::kAborted) {
      out += "{\"type\":\"abort\",\"message\":";
      json_append_string(out, finish.message.empty() ? "the request was aborted" : finish.message);
      out += '}';
    } else {
      out += "{\"type\":\"stop\",\"matched\":";
      if (finish.matched_text) {
        json_append_string(out, *finish.matched_text);
      } else {
        out += finish.matched_token ? std::to_string(*finish.matched_token) : "null";
      }
      out += '}';
    }
  }

  // The prompt's stand in the last event alone where events repeat everything: a long prompt's would swamp a stream.
  void append_logprobs(std::string& out, const ChoiceState& choice) const {
    const Logprobs& wish = logprobs_[static_cast<std::size_t>(choice.index) / n_];
    if (!wish.wanted) return;
    const bool with_prompt = !cumulative_ || choice.finish;
    for (const auto& [name, positions] :
         {std::pair{"input", LogprobSpan(choice.prompt_logprobs)}, std::pair{"output", LogprobSpan(choice.logprobs)}}) {
      if (name[0] == 'i' && !with_prompt) continue;
      fmt::format_to(std::back_inserter(out), ",\"{}_token_logprobs\":", name);
      append_native_logprobs(out, engine_, positions, text_in_logprobs_);
      if (wish.top) {
        fmt::format_to(std::back_inserter(out), ",\"{}_top_logprobs\":", name);
        append_native_top(out, engine_, positions, text_in_logprobs_);
      }
      if (!wish.ids.empty()) {
        fmt::format_to(std::back_inserter(out), ",\"{}_token_ids_logprobs\":", name);
        append_native_of_ids(out, engine_, positions, wish.ids, text_in_logprobs_);
      }
    }
  }

  const Engine& engine_;
  const std::vector<std::string> ids_;
  std::vector<Logprobs> logprobs_;
  const std::size_t n_;
  const bool list_, text_in_logprobs_, cumulative_;
};

// The names of every choice, and what /abort_request may call them: a choice, a prompt's choices, all of them.
std::vector<std::string> choice_ids(const GenerateFields& fields, std::vector<RequestNames::Name>& names) {
  const std::size_t n = fields.n();
  std::vector<std::string> ids;
  for (std::size_t i = 0; i < fields.rids.size(); ++i) {
    names.push_back({fields.rids[i], i * n, n});
    for (std::size_t k = 0; k < n; ++k) {
      ids.push_back(n == 1 ? fields.rids[i] : fmt::format("{}_{}", fields.rids[i], k));
      if (n > 1) names.push_back({ids.back(), ids.size() - 1, 1});
    }
  }
  if (fields.batch && !fields.rid.empty()) names.push_back({fields.rid, 0, ids.size()});
  return ids;
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  ASSIGN_OR_RETURN(GenerateFields fields, read_generate_fields(body, request.body, context.engine.model()));
  RETURN_IF_ERROR(read_rank(request, fields.request));
  RETURN_IF_ERROR(check_prompt_volume(request.body.size(), fields.n(), "sampling_params.n"));
  std::vector<RequestNames::Name> names;
  std::vector<std::string> ids = choice_ids(fields, names);
  ReplyOptions options;
  options.stream = fields.stream;
  options.token_events = true;
  options.cumulative = !fields.stream_output;
  options.choices_per_prompt = fields.n();
  auto reply = std::make_shared<Reply>(
      context, responder, std::make_unique<GenerateFormat>(context.engine, fields, std::move(ids)), options);
  reply->start(make_requests(std::move(fields.prompts), fields.sampling, fields.request, fields.n()), std::move(names));
  return ok_status();
}

}  // namespace

void add_generate_routes(ApiContext& context) {
  for (const char* method : {"POST", "PUT"}) {
    add_fallible_route(context, method, "/generate", handle, http::Access::kUser);
  }
}

}  // namespace millrace::api
