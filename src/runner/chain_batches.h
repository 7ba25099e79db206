// ChainBatches: the batches that are on their way through a chain of layer ranges, oldest first. Each is cut into
// parts; parts leave in order and come back in order, and the rows that come back are answered as they do. A batch is
// finished when all of its parts are back, and results are taken in the order of submission.
//
// Owner: ChainRunner, on its compute thread. Thread safety: none. Invariant: parts_ holds what was sent and is not
// back, in the order of sending.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runner/batch_check.h"
#include "runner/head_and_sampler.h"
#include "runner/part.h"
#include "runner/runner.h"

namespace millrace {

inline constexpr int kProbeMs = 2000;         // between two looks for a step that was lost with nothing behind it
inline constexpr std::size_t kMaxProbes = 2;  // in flight

// A part that is to be computed and sent.
struct OutgoingPart {
  const Batch* batch = nullptr;
  uint32_t number = 0;  // of the batch, from 0
  const Part* part = nullptr;
};

class ChainBatches {
 public:
  ChainBatches(const RunnerFacts& facts, int32_t max_rows, HeadAndSampler& answers)
      : max_rows_(max_rows), answers_(answers), check_(facts) {}

  // A batch that is wrong, or names other weights than `version`, is finished with its error and has no parts.
  void add(Batch batch, uint64_t version);
  // The next part of the newest batch; nullopt: all are sent. Without rows where the batch has copies alone. It is
  // valid until the next call.
  std::optional<OutgoingPart> next_part();
  // A batch of which parts are still to be sent. No other one is added before.
  bool unsent() const { return !batches_.empty() && !batches_.back()->all_sent; }
  std::size_t parts_in_flight() const { return parts_.size(); }  // probes too
  // A part without rows behind all others. It is due when nothing came or went for kProbeMs: a range that gets it sees
  // by its number that a step before it was lost, and so does the first range when it is back before one.
  bool probe_due(std::chrono::steady_clock::time_point now) const;
  OutgoingPart probe();
  std::size_t probes_in_flight() const;
  // When the oldest part in flight was sent.
  std::chrono::steady_clock::time_point oldest_sent() const { return parts_.front().sent; }

  // This part was back before: the message came twice.
  bool was_back(uint64_t step, uint32_t number) const { return last_back_ && std::pair(step, number) <= *last_back_; }
  // OK where the oldest part in flight is this one, and wants so many rows back.
  Status check_back(uint64_t step, uint32_t number, int64_t rows) const;
  // The oldest part is back, with the rows that it wanted. `compute_us`: of each range. Returns the microseconds that
  // head and draws took here.
  int64_t answer(kernels::ConstRows rows, std::span<const int64_t> compute_us, const Model& model);
  // The batch that was added last, of which nothing is sent.
  void fail_newest(const Status& status);
  // All batches end with this error; nothing is in flight any more.
  void fail_all(const Status& status);

  std::optional<BatchResult> take_finished();

 private:
  struct Running {
    Batch batch;
    BatchResult result;
    SequenceStates states;
    PartCursor cursor;
    uint32_t parts_sent = 0;
    uint32_t parts_back = 0;
    bool all_sent = false;
    std::vector<int64_t> compute_us;  // of each range

    bool finished() const { return all_sent && parts_back == parts_sent; }
  };
  struct SentPart {
    Running* batch = nullptr;
    uint32_t number = 0;
    std::vector<LogitRow> logit_rows;  // numbered as they come back
    bool probe = false;
    std::chrono::steady_clock::time_point sent;
  };
  void end_part();

  const int32_t max_rows_;
  HeadAndSampler& answers_;
  BatchCheck check_;
  std::deque<std::unique_ptr<Running>> batches_;
  std::deque<SentPart> parts_;
  Part part_;
  std::optional<std::pair<uint64_t, uint32_t>> last_back_;         // step and number; batches are numbered upwards
  std::optional<std::chrono::steady_clock::time_point> last_end_;  // of the batch before
};

}  // namespace millrace
