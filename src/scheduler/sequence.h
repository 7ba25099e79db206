// Sequence: what the scheduler knows of one live request. A plain record; the objects of this folder change it.
//
// Invariants, between two calls into the scheduler:
//   tokens = prompt, then what was generated (retraction keeps both), then `pending` that batches in flight draw:
//     kTokenInFlight, or what is known of them from `forced`
//   0 <= computed <= scheduled <= tokens.size();  batches <= RunnerFacts::depth
//   a batch draws one token, and the forced ones that it has rows for; one batch alone draws where the runner has no
//     token_in_flight
//   computed == scheduled and pending == 0 when no batch in flight names it
//   waiting: no pages, no lock, computed == 0, named by no batch
//   running: pages cover at least `scheduled` tokens; the first `shared_pages` of them belong to the tree and are
//     locked through `lock`, the rest are held by this sequence alone
//   ended: its end was reported; it only keeps its pages until the last batch that names it was polled
// Thread safety: the scheduler's thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/shared_span.h"
#include "runner/runner.h"
#include "scheduler/page_table.h"
#include "wire/generation.h"

namespace millrace {

struct RadixNode;

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

// Its position among those that wait. WaitingQueue alone writes it.
struct QueuePosition {
  int64_t rank = 0;       // the position that the policy gives it, the smallest first; ties by arrival
  int32_t skips = 0;      // others admitted after it was offered its place and did not fit
  int32_t overtaken = 0;  // others admitted while it was the oldest of all that wait
};

// What the last look at one that waits found, so that it is not matched anew before something changed for it.
// AdmissionControl alone writes it.
struct LastLook {
  int32_t matched = -1;            // tokens that the cache had, under `matched_tree`; -1: never looked
  uint64_t matched_tree = 0;       // SequenceMemory::changes() then
  int32_t deficit = 0;             // pages that it lacked; 0: it was not refused
  int64_t refused_pages = 0;       // pages available beyond those reserved, when it was refused
  uint64_t refused_published = 0;  // SequenceMemory::published_pages() then
  bool ever_deferred = false;
  int32_t deferred = 0;  // passes in which it waited for another to compute its next page, since its match grew
};

// Fields without a writer in their comment are set by make_sequence() and stay as they are, or are written by one part
// alone. Of the others: BatchesInFlight adds what a submitted batch takes, Settlement subtracts it when the batch comes
// back, SequenceMemory and Requests reset them where KV is attached, released or lost.
struct Sequence {
  ReqId id;
  wire::SamplingParams sampling;  // its lists for the runner are in `spec` alone
  SamplingSpec spec;              // what the runner is given where it samples; `banned` counts below min_tokens only
  std::string extra_key;
  // Also the key in the prefix cache: a row of a picture has its media id. Grown by BatchesInFlight (a placeholder) and
  // append_forced(); filled by Settlement::take_token(); cut by Settlement::fail_batch() and Requests::end().
  std::vector<int32_t> tokens;
  std::shared_ptr<const PromptInput> input;  // null: the prompt is tokens alone
  std::shared_ptr<RowState> row_state;       // null: its rows are embeddings
  int32_t row_limit = INT32_MAX;             // of one with a RowState: the rows before this position can be computed
  std::shared_ptr<RowCapture> capture;       // null: none of its rows is wanted
  // Where spec.wants_generated(): the known ones of `tokens` behind the prompt, and those behind them that are forced.
  // Written by append_forced() and Settlement::take_token().
  AppendArray<int32_t> known_generated;
  std::vector<int32_t> forced;  // the run behind the known tokens that its grammar leaves no choice about
  int32_t prompt_length = 0;
  int32_t priority = 0;           // larger = sooner, and cached for longer, where the policies look at it
  uint64_t arrival = 0;           // the order of acceptance; never changes
  std::optional<int32_t> cached;  // prompt tokens found in the prefix cache at the first admission
  int32_t cached_from_host = 0;   // of those, from the host tier
  int32_t transferred = 0;        // tokens whose KV another server sent for it
  Boxed<wire::KvTransferred> transfer;

  // Time, in microseconds of SchedulerOptions::now_us
  int64_t accepted_us = 0;
  int64_t queue_us = 0;  // from acceptance to the first admission, once that was
  int64_t deadline_us = kNoDeadline;
  int64_t queue_deadline_us = kNoDeadline;

  QueuePosition queue;  // while it waits
  LastLook look;        // the same

  // KV
  // That the KV was computed with. Set by SequenceMemory::attach(), and by Settlement with the first computed rows.
  uint64_t weight_version = 0;
  // False: the KV is of mixed weight versions, of a failed step, lost, or of rows of a RowSource. Set by
  // SequenceMemory::attach(); cleared by Settlement, and by Scheduler::check_kv_epoch().
  bool publishable = true;
  // Tokens whose KV is in `pages`. Raised by Settlement; set by SequenceMemory::attach() and release().
  int32_t computed = 0;
  PageTable pages;
  int32_t shared_pages = 0;
  RadixNode* lock = nullptr;
  int32_t match_limit = INT32_MAX;  // tokens that may come from the cache; the others are computed, whatever is cached
  int32_t host_tokens = 0;          // of those that the last attach() found, how many came from the host tier

  int32_t prefill_end = 0;  // tokens at the last attach(): what lies below is published chunk by chunk

  // In flight
  // `computed`, and the rows of the batches in flight. Raised by BatchesInFlight; set by AdmissionControl::start(), and
  // by Requests when the pages are released.
  int32_t scheduled = 0;
  // Of `tokens`, the last ones, that batches in flight draw. Raised by BatchesInFlight and append_forced(), lowered by
  // Settlement, cleared by Requests::end().
  int32_t pending = 0;
  int32_t batches = 0;     // in flight that name it: raised by BatchesInFlight, lowered by Settlement
  uint64_t last_step = 0;  // the newest batch that names or named it; samples the last token where `pending` > 0
  bool ended = false;

  int32_t kv_losses = 0;  // of all KV, while a batch in flight named it
  int32_t retractions = 0;
  int32_t preemptions = 0;                   // of those, for a request of higher priority
  uint64_t last_token_version = 0;           // the weight version of the newest token
  int32_t score_next = INT32_MAX;            // the first prompt position whose logprob a row has still to give
  int32_t capture_next = kNoRow;             // the first row of `capture` that is not computed yet
  bool report_first_prompt_logprob = false;  // that of prompt position 0, which no row gives

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t known() const { return length() - pending; }  // tokens whose values are known
  int32_t generated() const { return known() - prompt_length; }
  int32_t drawn() const { return length() - prompt_length; }  // those that are being drawn included
  int32_t remaining() const { return length() - scheduled; }  // rows until the next token can be sampled
  int32_t ready() const {
    return std::min(remaining(), row_limit - scheduled);
  }  // of these, those that can be computed
  wire::Usage usage() const {
    return {prompt_length,
            generated(),
            cached.value_or(0),
            cached_from_host,
            retractions,
            static_cast<double>(queue_us) / 1e6,
            std::min(transferred, cached.value_or(0))};
  }
};

// Rows that have still to give something are computed, whatever is cached; what they gave need not be computed again
// after a retraction.
inline void limit_match(Sequence& sequence) {
  const int32_t scored = sequence.score_next < sequence.prompt_length ? sequence.score_next - 1 : INT32_MAX;
  sequence.match_limit = std::min(scored, sequence.capture_next);
}

}  // namespace millrace
