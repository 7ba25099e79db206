// Engine: what the api asks of everything behind it. One implementation serves (stages/text_engine.h); tests bring a
// fake one.
//
// The answer to a submitted request gets one delta with `accepted`, then text, then exactly one delta with `finish`
// (stages/text_answer.h). A request that is refused (a bad template, a prompt over the context, a full queue) gets only
// the finish, with FinishReason::kError, a code and a message, so the api can still answer with a real HTTP status.
//
// Owner: in the server app/text_service.h. Thread safety: all functions may be called from any thread. An answer is
// called by one thread at a time, in order, perhaps from inside submit() where a request is refused. Of all these
// functions it may call abort() alone. After abort() returns, one delta that was already under way may still arrive.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "stages/prompt.h"
#include "stages/text_answer.h"
#include "stages/weight_control.h"
#include "text/tools/history_form.h"
#include "wire/messages.h"

namespace millrace {

struct GenerateRequest {
  SharedPrompt prompt;                      // requests that share one are encoded once
  wire::SamplingParams sampling;            // max_tokens is ignored here: the next field has it
  std::optional<int32_t> max_tokens;        // nullopt: to the end of the context
  std::string extra_key;                    // requests with different keys never share KV pages
  int32_t priority = 0;                     // larger = sooner, where the scheduler's policy looks at it
  int64_t timeout_ms = 0;                   // of this request; 0: the server's limit alone
  int64_t queue_timeout_ms = 0;             // how long it may wait for its first step; 0: the server's limit alone
  std::optional<int32_t> replica;           // which of several schedulers; nullopt: the router chooses
  std::optional<wire::RemoteKv> remote_kv;  // its prompt is computed here for another server, or there for this one

  bool embed = false;                         // the answer is the prompt's embedding; max_tokens is 0
  std::optional<wire::SpeechRequest> speech;  // the answer is spoken too
  std::string traceparent;                    // of the span of its server; "": it is not traced
};

struct TokenizeReply {
  std::vector<int32_t> ids;
};

// Of a model whose answers are spoken.
struct SpeechFacts {
  std::vector<std::string> voices;  // in lower case, sorted; the first is the default
  int sample_rate = 24000;          // Hz
  double frame_rate = 12.5;         // frames of codes in a second: tokens of audio, for usage
};

// Of a model that scores how well a document answers a query (formats/reranker_config.h).
struct RerankFacts {
  std::array<int32_t, 2> tokens{-1, -1};  // "no" and "yes", whose logits count; -1: the head does
  std::vector<float> head;
};

// What the api may report of the model without a request to any stage.
struct ModelFacts {
  std::string name;  // the served model's id
  std::string path;
  std::string architecture;
  int32_t context_length = 0;
  int32_t vocab_size = 0;
  // That run and wait at once: of a replica, and in Engine::model() of all. 0: not known.
  int64_t max_requests = 0;
  int64_t created = 0;  // Unix seconds at load
  bool has_chat_template = false;
  std::string chat_template;  // Jinja, as its file has it; "": there is none
  // How its output is read, and what its template wants of a history with calls.
  wire::ToolDialect tool_dialect = wire::ToolDialect::kNone;
  bool has_tool_token = false;  // the marker that begins a call is one token
  wire::ReasoningDialect reasoning_dialect = wire::ReasoningDialect::kNone;
  ToolHistoryForm tool_history;
  MediaFacts media;                   // what it takes beside text
  std::optional<SpeechFacts> speech;  // nullopt: it answers with text alone
  std::string no_embeddings;          // why it gives none; "": it gives some
  int64_t embedding_size = 0;
  bool mean_pooling = false;          // an embedding is the mean of all rows, not the last one
  bool normalizes = true;             // to length 1, where the request has no wish
  std::optional<RerankFacts> rerank;  // nullopt: it is no reranker
  std::string no_reranking = "its files name no score of a query and a document";  // why it is none
  // Sampling defaults from generation_config.json; nullopt: the field's own default.
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

struct Health {
  bool ready = false;     // requests are accepted now
  bool draining = false;  // shutting down: nothing new is accepted
  std::string reason;     // why not ready: "scheduler: loading weights, 40%"
  std::vector<wire::StageStatus> stages;
  std::optional<WeightsState> weights;  // of a pipeline that has some
};

// An edge of the pipeline between two stages, as the pipeline names them, for its picture.
struct StageLink {
  enum class Kind : uint8_t { kPayload = 0, kStream = 1, kLayers = 2, kPages = 3, kFeatures = 4 };
  std::string from, to;
  Kind kind = Kind::kPayload;
};

class Engine {
 public:
  virtual ~Engine() = default;
  virtual ReqId submit(GenerateRequest request, std::shared_ptr<TextAnswer> answer) = 0;
  // Ends the request without further events. Unknown or ended ids are ignored.
  virtual void abort(ReqId id) = 0;
  // Ends the request with the event of a finish kAborted: for an abort that another than its client asks for.
  virtual void cancel(ReqId id) = 0;
  // An admin command to every stage; `done` is called once, on another thread, with one reply of each. A stage that
  // does not answer within timeout_ms gives a reply with kDeadline; one that is not up, kUnavailable. Before those of
  // the stages stands the coordinator's where it refused the command, and of profiles always: when one ends, its
  // message is the path of the trace.
  virtual void admin(wire::AdminAction action, int64_t timeout_ms,
                     std::function<void(std::vector<wire::AdminReply>)> done) = 0;
  // The bytes of one token by itself, for logprobs: perhaps a part of a character. Empty for an id without a token.
  virtual std::string token_bytes(int32_t id) const = 0;
  // The callback is called once: on another thread, or from inside where the job is refused at once.
  virtual void tokenize(Prompt prompt, std::function<void(Result<TokenizeReply>)> done) = 0;
  virtual void detokenize(std::vector<int32_t> ids, bool skip_special_tokens,
                          std::function<void(Result<std::string>)> done) = 0;
  // null: its weights are never updated.
  virtual WeightControl* weights() const { return nullptr; }
  virtual const ModelFacts& model() const = 0;
  virtual Health health() const = 0;
  // Of the pipeline behind it.
  virtual std::vector<StageLink> links() const { return {}; }
};

}  // namespace millrace
