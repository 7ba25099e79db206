// POST /v1/completions.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/choices.h"
#include "api/fields.h"
#include "api/logprobs.h"
#include "api/prompt_forms.h"
#include "api/prompts.h"
#include "api/reply.h"
#include "api/routes.h"
#include "api/tool_fields.h"
#include "api/transfer_fields.h"
#include "api/unserved_fields.h"

namespace millrace::api {
namespace {

constexpr int32_t kDefaultMaxTokens = 16;  // OpenAI's default for this endpoint

class TextFormat : public ReplyFormat {
 public:
  TextFormat(const Engine& engine, std::string head, ShownDetails shown)
      : names_{engine, shown.tokens_as_ids, shown.top_logprobs}, shown_(std::move(shown)), head_(std::move(head)) {}

  void events(const ChoiceState& choice, EventWriter& out) override {
    const bool scored = shown_.logprobs && !(choice.logprobs.empty() && choice.prompt_logprobs.empty());
    const bool ids = shown_.token_ids && !choice.tokens.empty();
    if (choice.text.empty() && !scored && !ids && !choice.finish) return;
    // The end stands on the last chunk of text, where clients read it.
    std::string& event = out.begin();
    event += head_;
    append_choice(event, choice, choice.finish.has_value());
    event += "]}";
    out.end();
  }

  std::string choice(const ChoiceState& choice) override {
    std::string out;
    append_choice(out, choice, true);
    return out;
  }
  std::string body(std::string choices, const wire::Usage& usage) override {
    choices.insert(0, head_);
    choices += "],\"usage\":";
    append_usage(choices, usage);
    choices += '}';
    return choices;
  }

 private:
  void append_choice(std::string& out, const ChoiceState& choice, bool end) {
    out += "{\"index\":";
    append_integer(out, choice.index);
    out += ",\"text\":";
    json_append_string(out, choice.text);
    out += ",\"logprobs\":";
    if (shown_.logprobs) {
      TextOffset& offset = offsets_[choice.index];
      offset.text += choice.text;
      const LogprobSpan prompt = shown_.echo ? LogprobSpan(choice.prompt_logprobs) : LogprobSpan();
      append_text_logprobs(out, names_, prompt, choice.logprobs, offset);
    } else {
      out += "null";
    }
    append_end(out, end ? &*choice.finish : nullptr);
    if (shown_.token_ids) append_token_ids(out, choice);
    if (shown_.prompt_logprobs) {
      out += ",\"prompt_logprobs\":";
      append_prompt_logprobs(out, names_.engine, choice.prompt_logprobs);
    }
    out += '}';
  }

  // Those of the prompt stand in the choice's first chunk alone.
  void append_token_ids(std::string& out, const ChoiceState& choice) {
    out += ",\"token_ids\":";
    append_ids(out, choice.tokens);
    if (!with_prompt_.insert(choice.index).second) return;
    out += ",\"prompt_token_ids\":";
    append_ids(out, shown_.prompt_ids[static_cast<std::size_t>(choice.index) / shown_.choices_per_prompt]);
  }

  const TokenNames names_;
  const ShownDetails shown_;
  std::set<int> with_prompt_;          // the choices that have shown the ids of their prompt
  std::map<int, TextOffset> offsets_;  // of each choice: streams continue where their last chunk ended
  const std::string head_;
};

struct TextFields {
  CommonFields common;
  bool echo = false;
  bool logprobs = false;
  std::size_t best_of = 1;  // texts drawn of each prompt; n of them are kept
};

// `logprobs` is a count here; false means none, as if it were the chat endpoint's switch.
Status read_text_logprobs(const Json& body, TextFields& out) {
  const Json* given = json_find(body, "logprobs");
  if (!given || *given == false) return ok_status();
  std::optional<int64_t> count;
  RETURN_IF_ERROR(read_integer(body, "logprobs", 0, kMaxClientTopLogprobs, count));
  out.logprobs = true;
  out.common.sampling.params.top_logprobs = static_cast<int32_t>(*count);
  if (out.echo) out.common.sampling.params.prompt_logprobs_from = 0;
  return ok_status();
}

Status read_best_of(const Json& body, TextFields& out) {
  wire::SamplingParams& sampling = out.common.sampling.params;
  const int32_t n = out.common.sampling.n;
  out.best_of = static_cast<std::size_t>(n);
  std::optional<int64_t> best_of;
  RETURN_IF_ERROR(read_integer(body, "best_of", n, kMaxChoicesPerPrompt, best_of));
  if (!best_of || *best_of == n) return ok_status();
  if (out.common.stream) {
    return invalid_argument(
        "best_of is {} in a stream; wanted {}, as n, or no stream: all texts must be complete to "
        "be compared",
        *best_of, n);
  }
  out.best_of = static_cast<std::size_t>(*best_of);
  if (sampling.top_logprobs < 0) sampling.top_logprobs = 0;  // what they are ranked by
  return ok_status();
}

Result<TextFields> read_fields(const Json& body, const std::string& text, const ModelFacts& model) {
  TextFields out;
  RETURN_IF_ERROR(json_read(body, "echo", out.echo));
  SamplingDialect dialect = kOpenAiDialect;
  dialect.default_max_tokens = kDefaultMaxTokens;
  if (out.echo) dialect.least_max_tokens = 0;  // to score a prompt is use enough
  ASSIGN_OR_RETURN(out.common, read_common(body, text, model, dialect));
  RETURN_IF_ERROR(refuse_audio_output(body));
  RETURN_IF_ERROR(refuse_tools(body));
  RETURN_IF_ERROR(refuse_unless(body, "top_logprobs", 0));
  RETURN_IF_ERROR(read_text_logprobs(body, out));
  RETURN_IF_ERROR(read_prompt_logprobs(body, out.common));
  RETURN_IF_ERROR(read_best_of(body, out));
  return out;
}

struct TextJob {
  TextFields fields;
  std::string name, id;           // of the model, as the client calls it, and of the answer
  std::vector<Prompt> originals;  // for echo
};

// The prompts as they are computed; `ids`: theirs, where they are shown.
void start(ApiContext& context, const http::ResponderPtr& responder, const TextJob& job, std::vector<Prompt> prompts,
           PromptIds ids) {
  const TextFields& fields = job.fields;
  const SamplingFields& sampling = fields.common.sampling;
  ReplyOptions options{fields.common.stream, fields.common.include_usage, fields.common.continuous_usage};
  options.metadata = true;
  options.token_events = fields.logprobs || fields.common.token_ids;
  options.prompt_first = fields.logprobs && fields.echo;
  options.choices_per_prompt = fields.best_of;
  options.best = static_cast<std::size_t>(sampling.n);
  ShownDetails shown{fields.logprobs,
                     fields.common.tokens_as_ids,
                     fields.common.token_ids,
                     fields.common.prompt_logprobs,
                     fields.common.top_logprobs,
                     std::move(ids),
                     options.best,
                     fields.echo};
  std::string head = openai_head("text_completion", job.id, job.name, context.version);
  auto format = std::make_unique<TextFormat>(context.engine, std::move(head), std::move(shown));
  auto reply = std::make_shared<Reply>(context, responder, std::move(format), options);
  std::vector<RequestNames::Name> names = {{job.id, 0, prompts.size() * fields.best_of}};
  const bool truncated = fields.common.truncate.has_value();
  const std::vector<Prompt> echoed = fields.echo ? (truncated ? prompts : job.originals) : std::vector<Prompt>();
  auto requests = make_requests(std::move(prompts), {&sampling, 1}, fields.common.request, fields.best_of);
  if (!fields.echo) return reply->start(std::move(requests), std::move(names));
  with_prompt_texts(context, responder, echoed, sampling.params.skip_special_tokens,
                    [reply, requests = std::move(requests), names = std::move(names),
                     each = fields.best_of](const std::vector<std::string>& texts) {
                      std::vector<std::string> echo;
                      for (const std::string& text : texts) echo.insert(echo.end(), each, text);
                      reply->start(requests, names, std::move(echo));
                    });
}

Status handle(ApiContext& context, const http::Request& request, const http::ResponderPtr& responder) {
  ASSIGN_OR_RETURN(const Json body, parse_body(request.body));
  const ModelFacts& model = context.engine.model();
  auto job = std::make_shared<TextJob>();
  ASSIGN_OR_RETURN(job->name, context.names.read(body));
  ASSIGN_OR_RETURN(job->fields, read_fields(body, request.body, model));
  TextFields& fields = job->fields;
  RETURN_IF_ERROR(read_rank(request, fields.common.request));
  const SamplingFields& sampling = fields.common.sampling;
  const char* const field = sampling.n > 1 ? "n" : "best_of";
  RETURN_IF_ERROR(check_prompt_volume(request.body.size(), fields.best_of, field));
  ASSIGN_OR_RETURN(std::vector<Prompt> prompts, read_prompts(body, "prompt", kMaxPrompts, model.vocab_size));
  RETURN_IF_ERROR(check_choice_count(prompts.size(), fields.best_of, field));
  RETURN_IF_ERROR(check_kv_transfer(fields.common.request.remote_kv, prompts.size() * fields.best_of));
  RETURN_IF_ERROR(check_logprob_volume(sampling.params, sampling.max_tokens, prompts.size() * fields.best_of, model));
  job->id = fields.common.rid.empty() ? make_id("cmpl-") : fields.common.rid;
  if (fields.echo) job->originals = prompts;
  if (!fields.common.wants_ids()) return start(context, responder, *job, std::move(prompts), {}), ok_status();
  with_prompt_ids(context, responder, std::move(prompts), fields.common.truncate,
                  [&context, responder, job](PromptIds ids) {
                    std::vector<Prompt> computed = prompts_of(ids);
                    start(context, responder, *job, std::move(computed), std::move(ids));
                  });
  return ok_status();
}

}  // namespace

void add_completions_routes(ApiContext& context) {
  for (const char* path : {"/v1/completions", "/completions"}) add_post_route(context, path, handle);
}

}  // namespace millrace::api
