#include "stages/text_engine.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "stages/generating/lengths.h"

namespace millrace {
namespace {

// The shorter of two limits, where 0 is none.
int64_t shorter(int64_t a, int64_t b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

ModelFacts of_replicas(ModelFacts facts, int replicas) {
  facts.max_requests *= replicas;
  return facts;
}

}  // namespace

TextEngine::TextEngine(TextEngineOptions options, ModelFacts model, TokenizerStage& tokenizer, PipelineEngine& pipeline)
    : options_(options),
      model_(of_replicas(std::move(model), options.replicas)),
      tokenizer_(tokenizer),
      pipeline_(pipeline) {}

ReqId TextEngine::submit(GenerateRequest request, std::shared_ptr<TextAnswer> answer) {
  answer->begin(pipeline_, model_.vocab_size, request.speech.has_value());
  // First the id, then the prompt: the request has its deadline and its one end while it is tokenized.
  PipelineRequest accepted{.options = {.terminals = terminals_of(request),
                                       .timeout_ms = request.timeout_ms,
                                       .inputs_follow = true,
                                       .traceparent = std::move(request.traceparent)}};
  const ReqId id = pipeline_.submit(std::move(accepted), std::bind_front(&TextAnswer::deliver, std::move(answer)));
  start(id, std::move(request));
  return id;
}

// nullopt: the one that there is.
std::optional<std::vector<std::string>> TextEngine::terminals_of(const GenerateRequest& request) const {
  if (options_.terminal.empty()) return std::nullopt;
  std::vector<std::string> terminals = {options_.terminal};
  if (request.speech && !options_.speech_terminal.empty()) terminals.push_back(options_.speech_terminal);
  return terminals;
}

void TextEngine::start(ReqId id, GenerateRequest request) {
  if (request.replica && (*request.replica < 0 || *request.replica >= options_.replicas)) {
    pipeline_.set_prompt(
        id, invalid_argument("the data-parallel rank is {}; wanted 0 to {}", *request.replica, options_.replicas - 1),
        {});
    return;
  }
  const SharedPrompt prompt = std::exchange(request.prompt, {});
  Status posted = tokenizer_.post(
      prompt,
      [this, id, media = prompt.media(), request = std::move(request)](auto ids) mutable {
        tokenized(id, std::move(request), media, std::move(ids));
      },
      [this, id] { return pipeline_.is_live(id); });
  if (!posted.ok()) pipeline_.set_prompt(id, posted, {});
}

void TextEngine::find_reasoning(const std::vector<int32_t>& prompt, wire::SamplingParams& sampling) const {
  const bool closed = tokenizer_.find_open_reasoning(prompt, *sampling.parsing);
  // A model that shall not think writes the document at once: its grammar has no place for further reasoning.
  if (closed && sampling.grammar && wire::is_document(sampling.grammar->kind)) {
    sampling.parsing->reasoning = wire::ReasoningDialect::kNone;
  }
}

Result<wire::TokenizedRequest> TextEngine::make(GenerateRequest& request, const PromptMediaList& media,
                                                std::vector<int32_t> ids) const {
  wire::TokenizedRequest out{.prompt = std::move(ids), .sampling = std::move(request.sampling)};
  ASSIGN_OR_RETURN(out.sampling.max_tokens, resolve_max_tokens(static_cast<int64_t>(out.prompt.size()),
                                                               request.max_tokens, model_.context_length));
  if (out.sampling.parsing) find_reasoning(out.prompt, out.sampling);
  out.extra_key = std::move(request.extra_key);
  out.media = position_media(out.prompt, media, MediaTokens(model_.media));
  salt_digests(out.extra_key, out.media);
  out.priority = request.priority;
  out.timeout_ms = request.timeout_ms;
  out.embed = request.embed;
  out.remote_kv = std::move(request.remote_kv);
  if (request.speech) {
    if (options_.speech_terminal.empty()) return error(StatusCode::kUnsupported, "this pipeline speaks no answers");
    out.speech = std::move(*request.speech);
  }
  out.queue_timeout_ms = shorter(options_.queue_timeout_ms, request.queue_timeout_ms);
  return out;
}

// Pictures and audio count by their digests: their placeholders are all the same.
ReplicaRouter::Prefix TextEngine::prefix_of(const wire::TokenizedRequest& request) {
  if (request.media.empty()) return ReplicaRouter::prefix_of(request.prompt, request.extra_key);
  std::vector<int32_t> keys = request.prompt;
  for (const wire::PromptMedia& media : request.media) {
    int32_t key = 0;
    std::memcpy(&key, media.digest.bytes.data(), sizeof(key));
    std::fill_n(keys.begin() + media.begin, media.rows, key);
  }
  return ReplicaRouter::prefix_of(keys, request.extra_key);
}

// On a thread of the tokenizer.
void TextEngine::tokenized(ReqId id, GenerateRequest request, const PromptMediaList& media,
                           Result<std::vector<int32_t>> ids) {
  if (!ids.ok()) return pipeline_.set_prompt(id, ids.status(), {});
  Result<wire::TokenizedRequest> out = make(request, media, std::move(ids).value());
  PlacementHint hint{.replica = request.replica};
  if (out.ok()) {
    hint.tokens = static_cast<int64_t>(out->prompt.size());
    if (options_.wants_prefix) hint.prefix = prefix_of(*out);
  }
  pipeline_.set_prompt(id, std::move(out), std::move(hint));
}

Health TextEngine::health() const {
  Health health = pipeline_.health();
  std::map<std::string, int> replicas;
  for (const wire::StageStatus& stage : health.stages) ++replicas[stage.stage];
  for (wire::StageStatus& stage : health.stages) {
    if (replicas[stage.stage] > 1) stage.stage += fmt::format("-{}", stage.replica);
  }
  return health;
}

void TextEngine::admin(wire::AdminAction action, int64_t timeout_ms,
                       std::function<void(std::vector<wire::AdminReply>)> done) {
  pipeline_.admin(action, timeout_ms, std::move(done));
}

void TextEngine::tokenize(Prompt prompt, std::function<void(Result<TokenizeReply>)> done) {
  Status posted = tokenizer_.post(std::move(prompt), [done](Result<std::vector<int32_t>> ids) {
    if (!ids.ok()) return done(ids.status());
    done(TokenizeReply{std::move(ids).value()});
  });
  if (!posted.ok()) done(posted);
}

void TextEngine::detokenize(std::vector<int32_t> ids, bool skip_special_tokens,
                            std::function<void(Result<std::string>)> done) {
  Status posted = tokenizer_.post_decode(std::move(ids), skip_special_tokens, done);
  if (!posted.ok()) done(posted);
}

}  // namespace millrace
