// Every message between stages, grouped by the stage that receives it. The same structs travel by reference between
// threads (--placement single) and as versioned msgpack maps between processes (wire/codec.h).
//
// A request's way: TokenizedRequest (front -> scheduler), TokenBatch (scheduler -> detokenizer), TextBatch (detokenizer
// -> front). The scheduler ends every request it was given exactly once, with a TokenDelta that carries `finish`; the
// detokenizer may end it earlier, when a stop string matches, and the front then sends AbortRequest.
//
// Field numbers in the visit() functions are the wire format: append only.
// Thread safety: values; a message belongs to whoever holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace millrace::wire {

// How the tokens of one request are drawn and when it stops. Validated by the api before it goes on the wire.
struct SamplingParams {
  int32_t max_tokens = 0;    // new tokens at most; the tokenizer stage has resolved "to the end of the context"
  double temperature = 1.0;  // 0 = greedy
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  int32_t top_k = -1;        // -1 = all
  uint64_t seed = 0;         // always set: the front draws one where the client gave none
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // the model's end tokens are not in here: the scheduler knows them
  bool ignore_eos = false;              // the model's end tokens do not stop; stop_token_ids still do
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;

  template <typename V>
  void visit(V&& v) {
    v(1, max_tokens), v(2, temperature), v(3, top_p), v(4, min_p), v(5, top_k), v(6, seed), v(7, stop);
    v(8, stop_token_ids), v(9, ignore_eos), v(10, skip_special_tokens), v(11, include_stop_str_in_output);
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

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;  // prompt tokens whose KV came from the prefix cache

  template <typename V>
  void visit(V&& v) {
    v(1, prompt_tokens), v(2, completion_tokens), v(3, cached_tokens);
  }
};

// ---- to the scheduler -----------------------------------------------------------------------------------------------

struct TokenizedRequest {
  ReqId id;
  std::vector<int32_t> prompt;  // at least one id, each inside the vocabulary
  SamplingParams sampling;
  std::string cache_salt;  // requests with different salts never share KV pages

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, prompt), v(3, sampling), v(4, cache_salt);
  }
};

// Stop working on a request and free its pages. Idempotent; unknown ids are ignored. The scheduler answers with the
// request's finish (kAborted), which is the acknowledgement.
struct AbortRequest {
  ReqId id;

  template <typename V>
  void visit(V&& v) {
    v(1, id);
  }
};

// ---- to the detokenizer ---------------------------------------------------------------------------------------------

// What the detokenizer must know of a request; rides on the request's first delta.
struct DetokenizeStart {
  std::vector<std::string> stop;
  bool skip_special_tokens = true;
  bool include_stop_str_in_output = false;

  template <typename V>
  void visit(V&& v) {
    v(1, stop), v(2, skip_special_tokens), v(3, include_stop_str_in_output);
  }
};

// News of one request. The first one (accepted) has `start` and no tokens: it says that the request was admitted to the
// queue. A stop or end token is not in `tokens`; it is in finish.matched_token, and usage.completion_tokens counts it.
struct TokenDelta {
  ReqId id;
  std::optional<DetokenizeStart> start;
  std::vector<int32_t> tokens;
  std::optional<Finish> finish;
  Usage usage;  // so far

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, start), v(3, tokens), v(4, finish), v(5, usage);
  }
};

struct TokenBatch {
  std::vector<TokenDelta> deltas;

  template <typename V>
  void visit(V&& v) {
    v(1, deltas);
  }
};

// ---- to the front ---------------------------------------------------------------------------------------------------

struct TextDelta {
  ReqId id;
  bool accepted = false;  // the first delta of a request: admitted to the scheduler's queue
  std::string text;       // whole UTF-8 characters, never part of a stop string that may still complete
  std::optional<Finish> finish;
  Usage usage;

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, accepted), v(3, text), v(4, finish), v(5, usage);
  }
};

struct TextBatch {
  std::vector<TextDelta> deltas;

  template <typename V>
  void visit(V&& v) {
    v(1, deltas);
  }
};

enum class StageState : uint8_t { kLoading = 0, kReady = 1, kStalled = 2, kFailed = 3, kDraining = 4 };

// A stage's heartbeat, sent every kHeartbeatMs and at every change of state. The front's /ready is made from these.
struct StageStatus {
  std::string stage;  // "scheduler", "detokenizer"
  uint64_t incarnation = 0;
  StageState state = StageState::kLoading;
  std::string message;  // loading: what; failed: why
  double progress = 0;  // loading: 0..1
  uint64_t steps = 0;   // batches computed so far: a stage that is busy and whose steps stand still is stalled
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t pages_total = 0;
  int32_t pages_free = 0;
  int32_t pages_cached = 0;
  int32_t page_size = 0;

  template <typename V>
  void visit(V&& v) {
    v(1, stage), v(2, incarnation), v(3, state), v(4, message), v(5, progress), v(6, steps), v(7, running);
    v(8, waiting), v(9, pages_total), v(10, pages_free), v(11, pages_cached), v(12, page_size);
  }
};

// The position in this list is the type number on the wire: append only.
using Message = std::variant<TokenizedRequest, AbortRequest, TokenBatch, TextBatch, StageStatus>;

}  // namespace millrace::wire
