// Runner: the only interface between the scheduler and what computes tokens.
//
// submit() hands over one prepared batch and returns at once; poll() gives its sampled tokens. At most
// RunnerFacts::depth batches are in flight; results come in the order of submission. The scheduler owns the KV pages'
// books (which page belongs to whom); the runner owns the bytes behind them. A page named in a batch must stay the
// request's until that batch has been polled.
//
// Each batch names the version of the weights that compute it. New weights are staged beside those that serve; the
// first batch that names them is the switch, so that it happens between two steps and costs none.
//
// The scheduler knows this interface only, so it is tested with a fake runner whose next token is a hash of (weight
// version, all tokens so far).
//
// Owner: the worker's GeneratingEngine. Thread safety: submit, poll, read_pages and serve_staged are called by one
// thread, the scheduler's; the others by any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/shared_span.h"
#include "base/status.h"
#include "kv/page_copy.h"
#include "runner/prompt_input.h"
#include "runner/row_capture.h"
#include "runner/row_source.h"
#include "wire/generation.h"

namespace millrace {

class Model;

namespace grammar {
struct TokenGrammar;
}

inline constexpr int32_t kMaxDepth = 64;  // batches in flight that a runner may ask for

// In SequenceStep::tokens: the token that the batch submitted just before this one samples for the same request. It
// lets a batch be submitted while the one before it still runs. Only the last token may be one, and only for a runner
// whose facts permit it (RunnerFacts::token_in_flight).
inline constexpr int32_t kTokenInFlight = -1;

// How one row of logits becomes a token: penalties, bans and biases on the logits; then temperature and filters; then
// one draw that depends on (seed, position) and the logits alone.
struct SamplingSpec {
  double temperature = 1.0;  // 0 = greedy: the lowest id among the largest logits
  double top_p = 1.0;
  double min_p = 0.0;
  int32_t top_k = -1;
  uint64_t seed = 0;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  double repetition_penalty = 1;
  SharedSpan<wire::LogitBias> logit_bias;
  SharedSpan<int32_t> banned;             // never drawn in this step (the stop tokens, below min_tokens)
  int32_t top_logprobs = -1;              // -1: no logprobs
  SharedSpan<int32_t> logprob_token_ids;  // with logprobs: of these ids too

  std::shared_ptr<const grammar::TokenGrammar> grammar;  // only tokens that it allows behind the generated ones

  bool wants_generated() const { return penalizes() || grammar != nullptr; }
  bool penalizes() const { return frequency_penalty != 0 || presence_penalty != 0 || repetition_penalty != 1; }
};

// The share of one request in one step: rows for `tokens` at positions [position, position + tokens.size()). What grows
// with a text is shared between steps and not copied; nobody writes to it any more once it was submitted.
struct SequenceStep {
  ReqId request;
  // A chunk of the prompt, or the one token sampled last. A row of a picture has a media id (kv/media_ids.h): it begins
  // as `input` has it.
  std::vector<int32_t> tokens;
  int32_t position = 0;       // tokens whose KV is already in `pages`
  SharedSpan<int32_t> pages;  // page table: covers position + tokens.size() tokens
  bool sample = false;        // sample the token that follows the last row
  SamplingSpec sampling;
  std::shared_ptr<const PromptInput> input;   // null: the prompt is tokens alone
  std::shared_ptr<RowState> row_state;        // null: every row begins as its token, or as `input` has it
  std::shared_ptr<const RowCapture> capture;  // null: no row of this step is wanted
  // Where sampling.wants_generated(): the tokens generated so far, but for the last of `tokens`, which is a generated
  // one too where `last_is_generated`. Empty and false otherwise.
  SharedSpan<int32_t> generated;
  bool last_is_generated = false;
  int32_t forced_limit = 0;  // of SampledToken::forced
  // Logprobs of the prompt: the row of tokens[score_begin + i] is scored against score_targets[i], the token that
  // follows it in the prompt. Empty: none are wanted.
  int32_t score_begin = 0;
  std::vector<int32_t> score_targets;

  bool answers() const { return sample || !score_targets.empty(); }
};

struct Batch {
  uint64_t step = 0;
  uint64_t weight_version = 0;    // that computes it: the serving one or the staged one; 0: whichever serves
  std::vector<PageCopy> copies;   // done first, in this order
  std::vector<PageWrite> writes;  // and then these: a batch that has some needs no rows
  std::vector<SequenceStep> sequences;
};

// What a step found for one sequence that answers().
struct SampledToken {
  ReqId request;
  int32_t token = 0;                            // of no meaning without `sample`
  Status status;                                // not OK: this sequence alone failed (NaN logits); the others are good
  std::optional<wire::TokenLogprobs> logprobs;  // of `token`, where sampling.top_logprobs >= 0
  std::vector<wire::TokenLogprobs> prompt_logprobs;  // one for each of score_targets
  std::vector<int32_t> forced;                       // behind `token`: those that the grammar leaves no choice about
};

struct BatchResult {
  uint64_t step = 0;
  Status status;                     // not OK: the whole step failed, no tokens
  std::vector<SampledToken> tokens;  // one for each sequence that answers(), in the batch's order
  uint64_t weight_version = 0;
  int64_t compute_us = 0;  // from the first copy to the last draw; of a chain of ranges: of its slowest range
  int64_t idle_us = 0;     // that the compute thread had waited for this batch since it ended the one before
};

struct RunnerFacts {
  int32_t vocab_size = 0;
  int32_t context_length = 0;
  int32_t page_size = 0;
  int32_t page_count = 0;
  int32_t host_page_count = 0;    // of the host tier; 0: there is none
  uint64_t weight_version = 0;    // of the weights in place now
  uint64_t weights_checksum = 0;  // of the same; 0: unknown
  int32_t depth = 2;              // batches in flight at most, 1 to kMaxDepth
  // A row may follow a token that a batch in flight samples (kTokenInFlight). False for a chain of S ranges, which
  // computes up to S batches at the same time: its depth is S + 1, and a sequence that samples is in one batch only.
  bool token_in_flight = true;
  int64_t kv_page_bytes = 0;      // of one page in read_pages() and Batch::writes; 0: this runner cannot do either
  bool takes_media = false;       // SequenceStep::input may be set
  int64_t hidden_size = 0;        // of the features in it, where it may
  int32_t feature_sets = 1;       // of each row of a picture: the embedding and the additions
  bool takes_sound = false;       // rows may have one set of features instead, the embedding
  bool takes_row_states = false;  // SequenceStep::row_state may be set
  bool takes_positions = false;   // SequenceStep::input may have positions, and no spans, also without takes_media
  int layers = 0;                 // RowCapture::layer at most; 0: SequenceStep::capture may not be set
  bool mean_pooling = false;      // the embedding of a prompt is the mean of its rows, not the last one
};

// How far the batch that is computed now has come: of its rows in their order, the first `complete` have passed all
// layers, and those up to `rows` have stored their keys and values in `layers` layers.
struct StoredRows {
  uint64_t step = 0;
  int64_t complete = 0;
  int64_t rows = 0;
  int32_t layers = 0;
};

// What one range of a chain did for one request: from its first part to its last answer, as the first range sees it.
struct RangeFigures {
  uint32_t range = 0;
  int64_t begin_ns = 0, end_ns = 0;  // wall_clock_ns(); end_ns 0: nothing came back
  int64_t parts = 0;                 // with rows of the request, and perhaps of others
  int64_t rows = 0;
  int64_t row_bytes = 0;   // of the request's rows, that came to this range
  int64_t compute_us = 0;  // for these parts
};

struct RunnerMetric {
  std::string name;
  double value = 0;
};

class Runner {
 public:
  virtual ~Runner() = default;
  virtual RunnerFacts facts() const = 0;
  // kResourceExhausted when `depth` batches are in flight: a programmer error of the scheduler, not a user's.
  virtual Status submit(Batch batch) = 0;
  // The oldest finished batch; waits up to timeout_ms for it. nullopt: nothing finished in that time, or nothing in
  // flight.
  virtual std::optional<BatchResult> poll(int timeout_ms) = 0;
  // The bytes of complete pages, one page after the other, `to` as large as they are. They were computed by batches
  // that were polled, or stored_rows() has these layers, and no batch in flight copies or writes them;
  // others may be computed meanwhile. The scheduler's thread. kInvalidArgument: a page, a layer or a size out of range.
  virtual Status read_pages(std::span<const PageId> /*pages*/, std::span<std::byte> /*to*/, LayerSpan /*layers*/) {
    return error(StatusCode::kUnsupported, "this runner gives no bytes of KV pages");
  }
  // Of the batch that is computed; nullopt: none is, or this runner does not know. Any thread.
  virtual std::optional<StoredRows> stored_rows() const { return std::nullopt; }
  // A number that changes while a computation moves, also inside one long step, and means nothing else: a batch in
  // flight over which it stands still hangs. From any thread. A runner without one tells its steps alone.
  virtual uint64_t progress() const { return 0; }
  // Changes when all bytes of the KV pages were lost, those of the host tier too (a range of a chain was restarted).
  // Called by the scheduler's thread, before each plan and after each poll. A batch that was submitted before this
  // function returned the new value fails with kUnavailable, unless it was computed before the loss.
  virtual uint64_t kv_epoch() const { return 0; }
  // What is missing so that batches fail now, for people; empty: nothing. Any thread.
  virtual std::string missing() const { return {}; }
  // It is missing, and expected back: better to plan nothing than batches that fail. The scheduler's thread.
  virtual bool recovering() const { return false; }
  // From now on the figures of this request are counted. False: this runner has no ranges. Any thread, as end_trace(),
  // which gives them and must follow.
  virtual bool begin_trace(ReqId /*request*/) { return false; }
  virtual std::vector<RangeFigures> end_trace(ReqId /*request*/) { return {}; }
  // Numbers of its own for /metrics, by name ("name{label=value}"). Any thread.
  virtual std::vector<RunnerMetric> metrics() const { return {}; }

  // Keeps a model ready that a batch may name, in place of one that was staged before. Its version is neither 0 nor the
  // serving one. kInvalidArgument where its shapes are not those of the serving one, kResourceExhausted while too many
  // old models wait to be freed.
  virtual Status stage(std::shared_ptr<const Model> /*model*/) {
    return error(StatusCode::kUnsupported, "this runner takes no new weights");
  }
  virtual void drop_staged() {}                          // not what a batch in flight names
  virtual uint64_t staged_version() const { return 0; }  // 0: none is staged
  // The model that serves now; null: this runner takes no new weights.
  virtual std::shared_ptr<const Model> serving() const { return nullptr; }
  // Serves the staged model from now on, where no batch follows that would name it. Only while nothing is in flight.
  virtual Status serve_staged() { return error(StatusCode::kConflict, "no weights are staged"); }
};

}  // namespace millrace
