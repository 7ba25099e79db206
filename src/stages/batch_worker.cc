// The batch worker of stages/worker.h.
#include <algorithm>
#include <deque>
#include <exception>
#include <optional>

#include "stages/worker.h"

namespace millrace {
namespace {

class BatchWorker : public Worker {
 public:
  BatchWorker(BatchFunction work, BatchLimits limits, CostFunction cost)
      : work_(std::move(work)), limits_(limits), cost_(std::move(cost)) {}

  void start(ReqId id, Value payload, Emit&) override {
    const double cost = cost_ ? cost_(payload) : 0;
    waiting_.push_back({.id = id, .payload = std::move(payload), .cost = cost});
  }
  void drop(ReqId id) override {
    std::erase_if(waiting_, [id](const Waiting& waiting) { return waiting.id == id; });
  }

  // One batch a call, so that drops are handled between two.
  int tick(int64_t now_ms, Emit& emit) override {
    for (Waiting& waiting : waiting_) {
      if (!waiting.since_ms) waiting.since_ms = now_ms;
    }
    if (waiting_.empty()) return kNever;
    const std::size_t fits = batch_size();
    const int64_t waited_ms = now_ms - *waiting_.front().since_ms;
    const bool full = fits < waiting_.size() || fits >= max_batch();
    if (!full && waited_ms < limits_.max_wait_ms) return static_cast<int>(limits_.max_wait_ms - waited_ms);
    run(fits, emit);
    return waiting_.empty() ? kNever : 0;
  }

 private:
  struct Waiting {
    ReqId id;
    Value payload;
    double cost = 0;
    std::optional<int64_t> since_ms;  // the first tick that saw it
  };

  std::size_t max_batch() const { return static_cast<std::size_t>(std::max(limits_.max_batch, 1)); }

  // How many of the oldest make one batch.
  std::size_t batch_size() const {
    std::size_t size = 0;
    double cost = 0;
    for (const Waiting& waiting : waiting_) {
      cost += waiting.cost;
      const bool too_costly = limits_.max_cost > 0 && cost > limits_.max_cost && size > 0;
      if (too_costly || size == max_batch()) break;
      ++size;
    }
    return size;
  }

  void run(std::size_t size, Emit& emit) {
    std::vector<ReqId> ids;
    std::vector<Value> payloads;
    for (std::size_t i = 0; i < size; ++i) {
      ids.push_back(waiting_.front().id);
      payloads.push_back(std::move(waiting_.front().payload));
      waiting_.pop_front();
    }
    std::vector<Result<Value>> results = call(std::move(payloads), size);
    for (std::size_t i = 0; i < size; ++i) {
      if (results[i].ok()) {
        emit.result(ids[i], std::move(results[i]).value());
      } else {
        emit.fail(ids[i], results[i].status());
      }
    }
  }

  // The function's results, or one error for all of the batch: an exception must not reach those that wait behind it.
  std::vector<Result<Value>> call(std::vector<Value> payloads, std::size_t size) {
    Status status;
    try {
      std::vector<Result<Value>> results = work_(std::move(payloads));
      if (results.size() == size) return results;
      status = internal_error("the worker gave {} results for a batch of {}", results.size(), size);
    } catch (const std::exception& e) {
      status = internal_error("the worker threw: {}", e.what());
    } catch (...) {
      status = internal_error("the worker threw something that is no exception");
    }
    return std::vector<Result<Value>>(size, Result<Value>(status));
  }

  BatchFunction work_;
  const BatchLimits limits_;
  CostFunction cost_;
  std::deque<Waiting> waiting_;
};

}  // namespace

std::unique_ptr<Worker> make_batch_worker(BatchFunction work, BatchLimits limits, CostFunction cost) {
  return std::make_unique<BatchWorker>(std::move(work), limits, std::move(cost));
}

}  // namespace millrace
