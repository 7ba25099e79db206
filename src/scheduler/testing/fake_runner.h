// FakeRunner: a Runner that computes HashModel through its own KV pages, so that any mix-up of pages, positions, tokens
// or weights changes the text; and that checks every batch against the contract of runner/runner.h. For tests only.
//
// What it checks (violations() must stay empty):
//   - every page of a page table exists, stands there once, and is not free, both at submit and at poll
//   - rows are written to pages that are held, and that no other sequence of the batch names
//   - the KV slots below `position` hold that position, and the KV of exactly these tokens
//   - the table covers the rows; a request stands once in a batch; tokens are inside the vocabulary
// Pages that are free are poisoned at every submit and poll.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kv/page_pool.h"
#include "runner/runner.h"
#include "scheduler/testing/hash_model.h"

namespace millrace::testing {

class FakeRunner : public Runner {
 public:
  FakeRunner(RunnerFacts facts, HashModel model) : model(model), facts_(facts) {
    model_vocab_fits();
    slots_.resize(static_cast<std::size_t>(facts.page_count) * static_cast<std::size_t>(facts.page_size));
  }

  HashModel model;
  uint64_t weight_version = 1;
  int polls_per_step = 0;  // polls that find the batch still running, before the one that gets it
  // Faults. Unset: none.
  std::function<Status(const Batch&)> refuse;           // submit fails
  std::function<Status(const Batch&)> fail_step;        // the whole step fails
  std::function<Status(const SequenceStep&)> fail_row;  // one row fails
  std::function<bool(const SequenceStep&)> forget_row;  // one row gets no answer
  std::function<void(const Batch&)> on_submit;          // looks on

  // Without a pool the states of pages are not checked.
  void watch(const PagePool* pool) { pool_ = pool; }
  const std::vector<std::string>& violations() const { return violations_; }

  RunnerFacts facts() const override { return facts_; }

  Status submit(Batch batch) override {
    if (in_flight_.size() >= kMaxInFlight) return error(StatusCode::kResourceExhausted, "too many batches in flight");
    if (refuse) RETURN_IF_ERROR(refuse(batch));
    if (on_submit) on_submit(batch);
    poison_free_pages();
    check(batch);
    in_flight_.push_back(std::move(batch));
    polls_left_ = polls_per_step;
    return ok_status();
  }

  std::optional<BatchResult> poll(int /*timeout_ms*/) override {
    if (in_flight_.empty() || polls_left_-- > 0) return std::nullopt;
    const Batch batch = std::move(in_flight_.front());
    in_flight_.pop_front();
    polls_left_ = polls_per_step;
    poison_free_pages();
    check(batch);
    BatchResult result;
    result.step = batch.step;
    result.weight_version = weight_version;
    if (fail_step) result.status = fail_step(batch);
    for (const SequenceStep& step : batch.sequences) compute(step, result);
    if (!result.status.ok()) result.tokens.clear();
    return result;
  }

 private:
  struct Slot {
    int32_t position = -1;
    uint64_t kv = 0;
  };

  void model_vocab_fits() { CHECK(model.vocab_size <= facts_.vocab_size); }

  Slot& slot(const SequenceStep& step, int32_t position) {
    const auto page = static_cast<std::size_t>(step.pages[static_cast<std::size_t>(position / facts_.page_size)]);
    return slots_[page * static_cast<std::size_t>(facts_.page_size) +
                  static_cast<std::size_t>(position % facts_.page_size)];
  }

  void complain(const SequenceStep& step, const std::string& what) {
    if (violations_.size() < 20) violations_.push_back("request " + std::to_string(step.request.value) + ": " + what);
  }

  void poison_free_pages() {
    if (pool_ == nullptr) return;
    for (int32_t page = 0; page < facts_.page_count; ++page) {
      if (pool_->state(PageId{page}) != PageState::kFree) continue;
      const auto first = static_cast<std::ptrdiff_t>(page) * facts_.page_size;
      std::fill_n(slots_.begin() + first, facts_.page_size, Slot{-1, 0xdeaddeaddeaddeadull});
    }
  }

  void check(const Batch& batch) {
    std::map<int32_t, int> readers;  // page -> sequences that name it
    std::set<ReqId> seen;
    for (const SequenceStep& step : batch.sequences) {
      if (!seen.insert(step.request).second) complain(step, "stands twice in a batch");
      const std::set<int32_t> pages(step.pages.begin(), step.pages.end());
      if (pages.size() != step.pages.size()) complain(step, "names a page twice");
      for (int32_t page : pages) ++readers[page];
    }
    for (const SequenceStep& step : batch.sequences) check_pages(step, readers);
  }

  void check_pages(const SequenceStep& step, const std::map<int32_t, int>& readers) {
    const auto end = step.position + static_cast<int32_t>(step.tokens.size());
    if (step.tokens.empty() || step.position < 0 || end > facts_.context_length) complain(step, "rows out of range");
    if (static_cast<int64_t>(step.pages.size()) * facts_.page_size < end) return complain(step, "pages do not cover");
    for (int32_t token : step.tokens) {
      if (token < 0 || token >= facts_.vocab_size) complain(step, "token outside the vocabulary");
    }
    for (std::size_t i = 0; i < step.pages.size(); ++i) {
      const int32_t page = step.pages[i];
      const std::string name = "page " + std::to_string(page);
      if (page < 0 || page >= facts_.page_count) {
        complain(step, name + " does not exist");
        continue;
      }
      const bool written = static_cast<int32_t>(i) >= step.position / facts_.page_size;
      if (written && readers.at(page) > 1) complain(step, name + " is written and named by another");
      if (pool_ == nullptr) continue;
      const PageState state = pool_->state(PageId{page});
      if (state == PageState::kFree) complain(step, name + " is free");
      if (written && state != PageState::kHeld) complain(step, name + " is written and not held");
    }
  }

  void compute(const SequenceStep& step, BatchResult& result) {
    uint64_t kv = 0;
    uint64_t attended = 0;
    for (int32_t position = 0; position < step.position; ++position) {
      const Slot& read = slot(step, position);
      if (read.position != position) complain(step, "KV of another position at " + std::to_string(position));
      kv = read.kv;
      attended = HashModel::mix(attended, kv);
    }
    int32_t position = step.position;
    for (int32_t token : step.tokens) {
      kv = HashModel::next_kv(kv, token, weight_version);
      attended = HashModel::mix(attended, kv);
      slot(step, position) = {position, kv};
      ++position;
    }
    if (!step.sample || (forget_row && forget_row(step))) return;
    SampledToken sampled;
    sampled.request = step.request;
    if (fail_row) sampled.status = fail_row(step);
    sampled.token = model.draw(attended, position, step.sampling.temperature, step.sampling.seed);
    result.tokens.push_back(sampled);
  }

  RunnerFacts facts_;
  std::vector<Slot> slots_;
  const PagePool* pool_ = nullptr;
  std::deque<Batch> in_flight_;
  int polls_left_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace millrace::testing
