// What travels of generating: a request with its prompt as ids and its sampling, and what it becomes: ids, then text.
// They are the typed bodies of messages (wire/pipeline_messages.h), so that a token costs no payload tree.
//
// Field numbers in the visit() functions are the wire format: append only.
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/boxed.h"
#include "base/ids.h"
#include "base/status.h"
#include "wire/embedding.h"
#include "wire/limits.h"
#include "wire/output_parsing.h"
#include "wire/prompt_media.h"
#include "wire/speech.h"

namespace millrace::wire {

// Added to the logit of one token before it is drawn.
struct LogitBias {
  int32_t token = 0;
  double bias = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, token), v(2, bias);
  }
  friend bool operator==(const LogitBias&, const LogitBias&) = default;
};

enum class GrammarKind : uint8_t { kJsonSchema = 0, kRegex = 1, kEbnf = 2, kStructuralTag = 3 };

// Whether it describes the answer alone, behind whatever reasoning. EBNF describes all that is generated, and
// structural tags leave it free.
inline bool is_document(GrammarKind kind) { return kind == GrammarKind::kJsonSchema || kind == GrammarKind::kRegex; }

// What a text has to be, as the client wrote it. The stage that generates compiles it (docs/structured-output.md).
struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text;   // at most kMaxGrammarBytes
  std::string field;  // of the request, for messages

  template <typename V>
  void visit(V&& v) {
    v(1, kind), v(2, text, kMaxGrammarBytes), v(3, field);
  }
};

// How the tokens of one request are drawn and when it stops. Validated by the api before it goes on the wire.
struct SamplingParams {
  int32_t max_tokens = 0;    // new tokens at most; "to the end of the context" is resolved
  double temperature = 1.0;  // 0 = greedy
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  int32_t top_k = -1;        // -1 = all
  uint64_t seed = 0;         // always set: the api draws one where the client gave none
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // the model's end tokens are not in here: the scheduler knows them
  bool ignore_eos = false;              // the model's end tokens do not stop; stop_token_ids still do
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  // Penalties look at the generated tokens alone, never at the prompt.
  double frequency_penalty = 0;         // [-2, 2]: subtracted for each time a token was generated
  double presence_penalty = 0;          // [-2, 2]: subtracted once for a token that was generated
  double repetition_penalty = 1;        // (0, 2]: divides a generated token's positive logit, multiplies a negative one
  int32_t min_tokens = 0;               // before so many, end and stop tokens are not drawn
  std::vector<LogitBias> logit_bias;    // at most kMaxLogitBiases, each token once
  std::vector<std::string> stop_regex;  // as many and as long as stop strings may be
  int32_t top_logprobs = -1;            // -1: no logprobs; n: of the drawn token and of the n likeliest
  std::vector<int32_t> logprob_token_ids;  // with logprobs: of these ids too, at every place
  int32_t prompt_logprobs_from = -1;       // -1: none; else the first prompt position whose own logprob is wanted
  Boxed<GrammarSource> grammar;            // the text is one of its texts, or the beginning of one
  Boxed<OutputParsing> parsing;            // absent: the output is text alone

  template <typename V>
  void visit(V&& v) {
    v(1, max_tokens), v(2, temperature), v(3, top_p), v(4, min_p), v(5, top_k), v(6, seed), v(7, stop);
    v(8, stop_token_ids), v(9, ignore_eos), v(10, skip_special_tokens), v(11, include_stop_str_in_output);
    v(12, frequency_penalty), v(13, presence_penalty), v(14, repetition_penalty), v(15, min_tokens);
    v(16, logit_bias), v(17, stop_regex), v(18, top_logprobs), v(19, logprob_token_ids), v(20, prompt_logprobs_from);
    v(21, grammar), v(22, parsing);
  }
};

enum class FinishReason : uint8_t { kStop = 0, kLength = 1, kAborted = 2, kError = 3 };

// The one end of a request.
struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::optional<int32_t> matched_token;     // the stop or end token, when one stopped it
  std::optional<std::string> matched_text;  // the stop string, when one stopped it
  StatusCode code = StatusCode::kOk;        // with kError: what happened
  std::string message;                      // with kError: for the client

  template <typename V>
  void visit(V&& v) {
    v(1, reason), v(2, matched_token), v(3, matched_text), v(4, code), v(5, message);
  }
};

// What a request waited for the KV pages of its prompt that another server sent.
struct KvTransferred {
  double seconds = 0;
  uint64_t bytes = 0;  // of the transfer, which other requests may share
  std::string way;     // the relay that brought them; "messages": none did; "mixed": both; "": nothing came

  template <typename V>
  void visit(V&& v) {
    v(1, seconds), v(2, bytes), v(3, way, kMaxRelayNameBytes);
  }
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose KV came from the prefix cache, the host tier included
  int32_t host_tokens = 0;    // of those, from the host tier
  int32_t retractions = 0;
  double queue_seconds = 0;        // from acceptance to the first admission
  int32_t transferred_tokens = 0;  // of cached_tokens, those whose KV another server sent for this request
  int32_t reasoning_tokens = 0;    // generated ones that were reasoning, its tags included; the detokenizer counts them
  Boxed<KvTransferred> transfer;   // of one that waited for such pages: with its first delta and with its last

  template <typename V>
  void visit(V&& v) {
    v(1, prompt_tokens), v(2, completion_tokens), v(3, cached_tokens), v(4, host_tokens), v(5, retractions);
    v(6, queue_seconds), v(7, reasoning_tokens), v(8, transferred_tokens), v(9, transfer);
  }
};

// How likely the model held one token of a text at its place, and its rivals there. Natural logarithms of the softmax
// of the model's own logits, in f32: before penalties, biases and temperature, so they do not depend on how tokens are
// drawn.
struct TokenLogprobs {
  int32_t token = 0;
  std::optional<double> logprob;  // nullopt: the first token of a prompt, which nothing foretells
  std::vector<int32_t> top_ids;   // the likeliest first, the lower id first among equals
  std::vector<double> top;        // theirs
  std::vector<double> of_ids;     // of SamplingParams::logprob_token_ids, in that order
  int32_t rank = 0;               // of the token among all by likelihood, from 1; 0: not known

  template <typename V>
  void visit(V&& v) {
    v(1, token), v(2, logprob), v(3, top_ids), v(4, top), v(5, of_ids), v(6, rank);
  }
};

// A request that two servers share, by the word of a proxy: one computes the prompt, the other generates.
enum class KvRole : uint8_t {
  kPrefill = 0,  // keep the prompt's KV for the other
  kDecode = 1,   // take it from `peer`
};
struct RemoteKv {
  TransferId id;
  KvRole role = KvRole::kPrefill;
  std::string peer;  // the endpoint of the server that computes; empty with kPrefill

  template <typename V>
  void visit(V&& v) {
    v(1, id.text, kMaxTransferIdBytes), v(2, role), v(3, peer, kMaxEndpointBytes);
  }
  friend bool operator==(const RemoteKv&, const RemoteKv&) = default;
};

struct TokenizedRequest {
  ReqId id;
  std::vector<int32_t> prompt;  // at least one id, each inside the vocabulary
  SamplingParams sampling;
  std::string extra_key;         // requests with different keys (cache salt, adapter) never share KV pages
  int32_t priority = 0;          // larger = sooner, where the policy looks at it
  int64_t timeout_ms = 0;        // from acceptance to the end; 0: none
  int64_t queue_timeout_ms = 0;  // from acceptance to the first admission; 0: none
  std::optional<RemoteKv> remote_kv;
  std::vector<PromptMedia> media;  // in the prompt's sequence, apart from each other
  Boxed<SpeechRequest> speech;     // its answer is spoken too
  bool embed = false;              // its answer is the embedding of its prompt; max_tokens is 0
  std::string traceparent;         // no field: of the request, at the stage that generates

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, prompt), v(3, sampling), v(4, extra_key), v(5, priority), v(6, timeout_ms), v(7, queue_timeout_ms);
    v(8, remote_kv), v(9, media, kMaxPromptMedia), v(10, speech), v(11, embed);
  }
};

// What the detokenizer must know of a request; rides on the request's first delta.
struct DetokenizeStart {
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;
  std::vector<std::string> stop_regex;
  bool continues_text = false;  // the prompt has text: what a decoder does at the start of a text, it did there
  Boxed<OutputParsing> parsing;

  template <typename V>
  void visit(V&& v) {
    v(1, stop), v(2, skip_special_tokens), v(3, include_stop_str_in_output), v(4, stop_regex), v(5, continues_text);
    v(6, parsing);
  }
};

inline DetokenizeStart detokenize_start(const SamplingParams& sampling, bool continues_text) {
  return {.stop = sampling.stop,
          .skip_special_tokens = sampling.skip_special_tokens,
          .include_stop_str_in_output = sampling.include_stop_str_in_output,
          .stop_regex = sampling.stop_regex,
          .continues_text = continues_text,
          .parsing = sampling.parsing};
}

// An event of one request. The first one (accepted) has `start` and no tokens: the request was admitted to the
// queue. A stop or end token is not in `tokens`; it is in finish.matched_token, and usage.completion_tokens counts it.
struct TokenDelta {
  ReqId id;
  Boxed<DetokenizeStart> start;
  std::vector<int32_t> tokens;
  Boxed<Finish> finish;
  Usage usage;                                 // so far
  std::vector<TokenLogprobs> logprobs;         // where asked for: of `tokens`, then of the stop or end token
  std::vector<TokenLogprobs> prompt_logprobs;  // the next part of the prompt's; all come before the first token
  uint64_t weight_version = 0;                 // that computed these tokens; 0: nothing was computed yet
  Boxed<SpeechStart> speech;                   // of a request that is spoken: beside `start`
  Boxed<Embedding> embedding;                  // of a request that wants it: beside `finish`

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, start), v(3, tokens), v(4, finish), v(5, usage), v(6, logprobs), v(7, prompt_logprobs);
    v(8, weight_version), v(9, speech), v(10, embedding);
  }
};

struct TextDelta {
  ReqId id;
  bool accepted = false;  // the first delta of a request: admitted to the scheduler's queue
  std::string text;       // whole UTF-8 characters, never part of a stop string that may still complete
  Boxed<Finish> finish;
  Usage usage;
  // As in TokenDelta. All tokens come, in order, once; `text` may lag behind them.
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;
  uint64_t weight_version = 0;
  std::vector<OutputEvent> events;  // of a request with `parsing`: what comes instead of `text`
  Boxed<Embedding> embedding;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, accepted), v(3, text), v(4, finish), v(5, usage), v(6, tokens), v(7, logprobs);
    v(8, prompt_logprobs), v(9, weight_version), v(10, events), v(11, embedding);
  }
};

}  // namespace millrace::wire
