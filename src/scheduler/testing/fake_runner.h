// FakeRunner: a Runner that computes HashModel through its own KV pages, so that any mix-up of pages, positions, tokens
// or weights changes the text; and that checks every batch against the contract of runner/runner.h. For tests only.
//
// What it checks (violations() must stay empty):
//   - every page of a page table exists, stands there once, and is not free, both at submit and at poll
//   - rows are written to pages that are held, and that no other request of this batch or of one in flight names
//   - the KV slots below `position` hold that position
//   - the table covers the rows; a request stands once in a batch; tokens are inside the vocabulary
//   - kTokenInFlight is the last token, and the batch just before samples one for that request; never where the facts
//     do not permit it, and neither is a batch of other weights than those in flight
//   - `generated` comes with penalties and only then; scored rows are rows of the step
//   - copies name pages that exist; a page that comes from the host is not free
//   - bytes are written to pages that are importing, both at submit and at poll; and read from those that are cached
//     and that no copy in flight fills, or from held ones in layers that stored_rows() has named
// Free pages are poisoned at every submit and poll, but for those whose copy to the host is under way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kv/media_ids.h"
#include "kv/page_pool.h"
#include "runner/runner.h"
#include "scheduler/testing/hash_model.h"

namespace millrace::testing {

inline constexpr int64_t kFakeTokenBytes = 16;  // of a page, for RunnerFacts::kv_page_bytes
inline constexpr int32_t kFakeLayers = 4;       // among which those of a token are divided, where the facts have layers

class FakeRunner : public Runner {
 public:
  FakeRunner(RunnerFacts facts, HashModel model) : model(model), facts_(facts) {
    CHECK(model.vocab_size <= facts_.vocab_size);
    slots_.resize(static_cast<std::size_t>(facts.page_count) * static_cast<std::size_t>(facts.page_size));
    host_slots_.resize(static_cast<std::size_t>(facts.host_page_count) * static_cast<std::size_t>(facts.page_size));
    users_.resize(static_cast<std::size_t>(facts.page_count));
  }

  HashModel model;
  uint64_t weight_version = 1;  // serves
  uint64_t staged = 0;          // 0: none
  int polls_per_step = 0;       // polls that find the batch still running, before the one that gets it
  int looks_per_poll = 0;       // stored_rows() that find it running, before it has ended unpolled; 0: all of them
  // Faults. Unset: none.
  std::function<Status(const Batch&)> refuse;           // submit fails
  std::function<Status(const Batch&)> fail_step;        // the whole step fails
  std::function<Status(const SequenceStep&)> fail_row;  // one row fails
  std::function<bool(const SequenceStep&)> forget_row;  // one row gets no answer
  std::function<void(const Batch&)> on_submit;          // looks on
  std::function<void()> on_poll;                        // once, within the next poll; may call lose_kv()
  std::function<int64_t(const Batch&)> compute_us;      // how long the step took
  bool recovers = false;                                // recovering()
  int most_in_flight = 0;
  uint64_t copies = 0;

  // Without a pool the states of pages are not checked.
  void watch(const PagePool* pool) { pool_ = pool; }
  const std::vector<std::string>& violations() const { return violations_; }

  // All bytes behind the pages are gone, as when a range of a chain was restarted. Of the batches in flight, the first
  // `computed` were computed before; the others fail. Between two steps, or in on_poll.
  void lose_kv(std::size_t computed = 0) {
    ++kv_epoch_;
    for (std::size_t i = results_.size(); i < in_flight_.size(); ++i) {
      const Batch& batch = in_flight_[i];
      if (i < computed) {
        results_.push_back(run(batch));
      } else {
        results_.emplace_back().step = batch.step;
        results_.back().status = error(StatusCode::kUnavailable, "a range of the chain is lost");
        results_.back().weight_version = weight_version;
      }
    }
    std::ranges::fill(slots_, kPoison);
    std::ranges::fill(host_slots_, kPoison);
  }

  RunnerFacts facts() const override { return facts_; }
  bool recovering() const override { return recovers; }
  uint64_t kv_epoch() const override { return kv_epoch_; }
  uint64_t staged_version() const override { return staged; }
  void drop_staged() override { staged = 0; }
  Status serve_staged() override {
    if (!in_flight_.empty() || staged == 0) complain("serve_staged with batches in flight, or nothing staged");
    weight_version = std::exchange(staged, 0);
    return ok_status();
  }

  Status read_pages(std::span<const PageId> pages, std::span<std::byte> to, LayerSpan layers) override {
    const bool stored = stored_ && layers.end > 0 && layers.end <= stored_->layers && pool_ != nullptr;
    for (const PageId page : pages) {
      const bool held = stored && pool_->state(page) == PageState::kHeld;
      if (!held) check_state({&page, 1}, PageState::kCached, "a read");
      if (is_being_filled(page)) complain("a read of page " + std::to_string(page.value) + ", being filled");
    }
    if (layers == LayerSpan{}) layers.end = layers_of_page();
    if (to.size() != pages.size() * bytes_of(layers)) complain("a read of another size");
    std::byte* next = to.data();
    for (const PageId page : pages) {
      each_layer(page, layers, [&](std::byte* slot, std::size_t size) {
        std::memcpy(next, slot, size);
        next += size;
      });
    }
    return ok_status();
  }
  std::optional<StoredRows> stored_rows() const override {
    return looks_per_poll > 0 && looks_++ >= looks_per_poll ? std::nullopt : stored_;
  }

  Status submit(Batch batch) override {
    if (in_flight_.size() >= static_cast<std::size_t>(facts_.depth)) {
      complain("too many batches in flight");
      return error(StatusCode::kResourceExhausted, "too many batches in flight");
    }
    if (refuse) RETURN_IF_ERROR(refuse(batch));
    if (on_submit) on_submit(batch);
    if (batch.sequences.empty() && batch.writes.empty() && batch.copies.empty()) complain("a batch of nothing");
    check_in_flight_tokens(batch);
    const uint64_t before = in_flight_.empty() ? 0 : in_flight_.back().weight_version;  // 0: whichever serves
    if (!facts_.token_in_flight && before != 0 && batch.weight_version != before) {
      complain("a batch of new weights while older ones are in flight");
    }
    in_flight_.push_back(std::move(batch));
    poison_free_pages();
    check(in_flight_.back());
    check_writers(in_flight_.back());
    most_in_flight = std::max(most_in_flight, static_cast<int>(in_flight_.size()));
    if (in_flight_.size() == 1) polls_left_ = polls_per_step;
    return ok_status();
  }

  std::optional<BatchResult> poll(int /*timeout_ms*/) override {
    if (on_poll) std::exchange(on_poll, nullptr)();
    if (in_flight_.empty()) return std::nullopt;
    if (polls_left_-- > 0) return store_layers(), std::nullopt;
    stored_.reset();
    polls_left_ = polls_per_step;
    poison_free_pages();
    if (results_.empty()) results_.push_back(run(in_flight_.front()));
    BatchResult result = std::move(results_.front());
    results_.pop_front();
    in_flight_.pop_front();
    return result;
  }

 private:
  struct Slot {
    int32_t position = -1;
    uint64_t kv = 0;
  };
  static_assert(sizeof(Slot) == kFakeTokenBytes);
  static constexpr Slot kPoison{-1, 0xdeaddeaddeaddeadull};

  BatchResult run(const Batch& batch) {
    check(batch);
    for (const PageCopy& copy : batch.copies) carry_out(copy);
    BatchResult result;
    for (const PageWrite& write : batch.writes) store(write);
    result.step = batch.step;
    if (staged != 0 && batch.weight_version == staged) weight_version = std::exchange(staged, 0);
    if (batch.weight_version != 0 && batch.weight_version != weight_version) complain("a batch of unknown weights");
    result.weight_version = weight_version;
    result.compute_us = compute_us ? compute_us(batch) : 0;
    if (fail_step) result.status = fail_step(batch);
    std::map<ReqId, int32_t> sampled;
    for (const SequenceStep& step : batch.sequences) compute(step, result, sampled);
    sampled_ = std::move(sampled);
    if (!result.status.ok()) result.tokens.clear();
    return result;
  }

  // Of a batch that is still running, a part of the layers is there; all rows pass them together.
  void store_layers() {
    if (facts_.layers == 0 || facts_.kv_page_bytes == 0) return;
    if (results_.empty()) results_.push_back(run(in_flight_.front()));
    if (!results_.front().status.ok()) return;
    stored_ = StoredRows{.step = in_flight_.front().step};
    looks_ = 0;
    for (const SequenceStep& step : in_flight_.front().sequences) {
      stored_->rows += static_cast<int64_t>(step.tokens.size());
    }
    stored_->layers = kFakeLayers * (polls_per_step - polls_left_) / (polls_per_step + 1);
  }

  Slot& slot(const SequenceStep& step, int32_t position) {
    const auto page = static_cast<std::size_t>(step.pages[static_cast<std::size_t>(position / facts_.page_size)]);
    return slots_[page * static_cast<std::size_t>(facts_.page_size) +
                  static_cast<std::size_t>(position % facts_.page_size)];
  }

  void complain(const std::string& what) {
    if (violations_.size() < 20) violations_.push_back(what);
  }
  void complain(const SequenceStep& step, const std::string& what) {
    complain("request " + std::to_string(step.request.value) + ": " + what);
  }

  bool is_free(int32_t page) const { return pool_ != nullptr && pool_->state(PageId{page}) == PageState::kFree; }

  void poison_free_pages() {
    if (pool_ == nullptr) return;
    std::vector<bool> leaving(static_cast<std::size_t>(facts_.page_count));
    for (const Batch& batch : in_flight_) {
      for (const PageCopy& copy : batch.copies) {
        if (copy.direction == CopyDirection::kToHost) leaving[static_cast<std::size_t>(copy.page.value)] = true;
      }
    }
    for (int32_t page = 0; page < facts_.page_count; ++page) {
      if (!is_free(page) || leaving[static_cast<std::size_t>(page)]) continue;
      const auto first = slots_.begin() + static_cast<std::ptrdiff_t>(page) * facts_.page_size;
      std::fill_n(first, facts_.page_size, kPoison);
    }
  }

  void carry_out(const PageCopy& copy) {
    ++copies;
    const auto page = slots_.begin() + static_cast<std::ptrdiff_t>(copy.page.value) * facts_.page_size;
    const auto host = host_slots_.begin() + static_cast<std::ptrdiff_t>(copy.host_page.value) * facts_.page_size;
    if (copy.direction == CopyDirection::kToHost) {
      std::copy_n(page, facts_.page_size, host);
    } else {
      std::copy_n(host, facts_.page_size, page);
    }
  }

  std::size_t slot_of(PageId page) const {
    return static_cast<std::size_t>(page.value) * static_cast<std::size_t>(facts_.page_size);
  }
  std::size_t page_bytes() const { return static_cast<std::size_t>(facts_.page_size) * sizeof(Slot); }

  int32_t layers_of_page() const { return facts_.layers == 0 ? 1 : kFakeLayers; }
  std::size_t bytes_of(LayerSpan layers) const {
    return page_bytes() / static_cast<std::size_t>(layers_of_page()) * static_cast<std::size_t>(layers.count());
  }
  // What these layers have of each slot of a page, in the order of a page's bytes: each has a part of the slot's.
  template <typename Visit>
  void each_layer(PageId page, LayerSpan layers, Visit visit) {
    const std::size_t size = sizeof(Slot) / static_cast<std::size_t>(layers_of_page());
    for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
      for (std::size_t i = 0; i < static_cast<std::size_t>(facts_.page_size); ++i) {
        auto* slot = reinterpret_cast<std::byte*>(&slots_[slot_of(page) + i]);
        visit(slot + static_cast<std::size_t>(layer) * size, size);
      }
    }
  }

  void store(const PageWrite& write) {
    std::string bytes;
    for (const SharedBytes& part : write.bytes) {
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size_bytes());
    }
    LayerSpan layers = write.layers;
    if (layers == LayerSpan{}) layers.end = layers_of_page();
    if (bytes.size() != write.pages.size() * bytes_of(layers)) return complain("a write of another size");
    const char* next = bytes.data();
    for (const PageId page : write.pages) {
      each_layer(page, layers, [&](std::byte* slot, std::size_t size) {
        std::memcpy(slot, next, size);
        next += size;
      });
    }
  }

  bool is_being_filled(PageId page) const {
    return std::ranges::any_of(in_flight_, [&](const Batch& batch) {
      return std::ranges::any_of(batch.copies, [&](const PageCopy& copy) {
        return copy.direction == CopyDirection::kFromHost && copy.page == page;
      });
    });
  }

  void check_state(std::span<const PageId> pages, PageState wanted, const char* what) {
    for (const PageId page : pages) {
      if (page.value < 0 || page.value >= facts_.page_count) {
        complain(std::string(what) + " of a page that does not exist");
      } else if (pool_ != nullptr && pool_->state(page) != wanted) {
        complain(std::string(what) + " of page " + std::to_string(page.value) + ", which is " +
                 page_state_name(pool_->state(page)));
      }
    }
  }

  // The batch just before it, whether in flight or polled, must sample what it stands in for.
  void check_in_flight_tokens(const Batch& batch) {
    for (const SequenceStep& step : batch.sequences) {
      const bool waits = !step.tokens.empty() && step.tokens.back() == kTokenInFlight;
      if (!waits) continue;
      if (!facts_.token_in_flight) complain(step, "kTokenInFlight, which this runner does not know");
      const Batch* before = in_flight_.empty() ? nullptr : &in_flight_.back();
      const auto samples = [&](const SequenceStep& other) { return other.request == step.request && other.sample; };
      if (before == nullptr || std::ranges::none_of(before->sequences, samples)) {
        complain(step, "kTokenInFlight, but the batch before samples nothing for it");
      }
    }
  }

  void check(const Batch& batch) {
    std::ranges::fill(users_, 0);
    for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
      const SequenceStep& step = batch.sequences[i];
      for (std::size_t k = 0; k < i; ++k) {
        if (batch.sequences[k].request == step.request) complain(step, "stands twice in a batch");
      }
      for (int32_t page : step.pages) {
        if (page < 0 || page >= facts_.page_count) return complain(step, "page " + std::to_string(page) + " is none");
        ++users_[static_cast<std::size_t>(page)];
      }
    }
    for (const SequenceStep& step : batch.sequences) {
      check_rows(step);
      check_pages(step);
    }
    for (const PageWrite& write : batch.writes) check_state(write.pages, PageState::kImporting, "a write");
    for (const PageCopy& copy : batch.copies) {
      const bool exists = copy.page.value >= 0 && copy.page.value < facts_.page_count && copy.host_page.value >= 0 &&
                          copy.host_page.value < facts_.host_page_count;
      if (!exists) complain("a copy of a page that does not exist");
    }
  }

  void check_rows(const SequenceStep& step) {
    const auto rows = static_cast<int32_t>(step.tokens.size());
    const auto end = step.position + rows;
    if (step.tokens.empty() || step.position < 0 || end > facts_.context_length) complain(step, "rows out of range");
    if (static_cast<int64_t>(step.pages.size()) * facts_.page_size < end) complain(step, "pages do not cover");
    const auto check_tokens = [&](std::span<const int32_t> tokens, bool rows_of_step) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] == kTokenInFlight && i + 1 == tokens.size()) continue;
        const int32_t row = step.position + static_cast<int32_t>(i);
        const bool picture = rows_of_step && step.input != nullptr && step.input->span_of(row) != nullptr;
        if (picture != is_media_id(tokens[i])) complain(step, "a media id where there is no picture, or the reverse");
        if (!picture && (tokens[i] < 0 || tokens[i] >= facts_.vocab_size)) {
          complain(step, "token outside the vocabulary");
        }
      }
    };
    check_tokens(step.tokens, true);
    check_tokens(step.generated, false);
    if ((!step.generated.empty() || step.last_is_generated) && !step.sampling.wants_generated()) {
      complain(step, "generated tokens that nobody asked for");
    }
    if (std::ranges::count(step.generated, kTokenInFlight) > 0) complain(step, "a generated token in flight");
    if (!step.generated.empty() && !step.last_is_generated) complain(step, "generated tokens before one that is none");
    const auto scores = static_cast<int32_t>(step.score_targets.size());
    if (step.capture && facts_.layers == 0) complain(step, "rows that this runner does not give");
    if (scores > 0 && (step.score_begin < 0 || step.score_begin + scores > rows)) complain(step, "scores no rows");
  }

  void check_pages(const SequenceStep& step) {
    for (std::size_t i = 0; i < step.pages.size(); ++i) {
      const int32_t page = step.pages[i];
      const auto name = [&] { return "page " + std::to_string(page); };
      if (std::find(step.pages.begin(), step.pages.begin() + static_cast<std::ptrdiff_t>(i), page) !=
          step.pages.begin() + static_cast<std::ptrdiff_t>(i)) {
        complain(step, name() + " is named twice");
      }
      const bool written = static_cast<int32_t>(i) >= step.position / facts_.page_size;
      if (written && users_[static_cast<std::size_t>(page)] > 1) complain(step, name() + " is written, another's too");
      if (pool_ == nullptr) continue;
      if (is_free(page)) complain(step, name() + " is free");
      if (written && pool_->state(PageId{page}) != PageState::kHeld) complain(step, name() + " is written, not held");
    }
  }

  // What the newest batch writes, no other request of an earlier one may name.
  void check_writers(const Batch& newest) {
    for (const Batch& earlier : in_flight_) {
      if (&earlier == &newest) break;
      std::ranges::fill(users_, 0);
      std::map<int32_t, ReqId> named;
      for (const SequenceStep& step : earlier.sequences) {
        for (int32_t page : step.pages) named[page] = step.request;
      }
      for (const SequenceStep& step : newest.sequences) {
        for (auto i = static_cast<std::size_t>(step.position / facts_.page_size); i < step.pages.size(); ++i) {
          const auto other = named.find(step.pages[i]);
          if (other == named.end() || other->second == step.request) continue;
          complain(step, "page " + std::to_string(step.pages[i]) + " is written while an earlier batch names it");
        }
      }
    }
  }

  // Of one float: the position plus one, and 1000 for each weight version before the serving one.
  void capture(const RowCapture& wanted, int32_t position) const {
    const float row = static_cast<float>(position + 1) + 1000 * static_cast<float>(weight_version - 1);
    if (wanted.sum) return wanted.sum->add(position, &row);
    if (float* captured = wanted.row(position); captured != nullptr) *captured = row;
  }

  void compute(const SequenceStep& step, BatchResult& result, std::map<ReqId, int32_t>& all_sampled) {
    uint64_t kv = 0;
    uint64_t attended = 0;
    for (int32_t position = 0; position < step.position; ++position) {
      const Slot& read = slot(step, position);
      if (read.position != position) complain(step, "KV of another position at " + std::to_string(position));
      kv = read.kv;
      attended = HashModel::mix(attended, kv);
    }
    SampledToken answer;
    answer.request = step.request;
    int32_t position = step.position;
    const auto value = [&](int32_t token) { return token == kTokenInFlight ? sampled_[step.request] : token; };
    for (int32_t token : step.tokens) {
      kv = HashModel::next_kv(kv, value(token), weight_version);
      attended = HashModel::mix(attended, kv);
      slot(step, position) = {position, kv};
      if (step.capture) capture(*step.capture, position);
      const int32_t scored = position - step.position - step.score_begin;
      if (scored >= 0 && scored < static_cast<int32_t>(step.score_targets.size())) {
        const int32_t target = step.score_targets[static_cast<std::size_t>(scored)];
        answer.prompt_logprobs.push_back(model.logprobs(attended, position + 1, target, step.sampling));
      }
      ++position;
    }
    if (!step.answers() || (forget_row && forget_row(step))) return;
    if (fail_row) answer.status = fail_row(step);
    if (step.sample) {
      std::vector<int32_t> generated(step.generated.begin(), step.generated.end());
      if (step.last_is_generated) generated.push_back(value(step.tokens.back()));
      answer.token = model.draw(attended, position, step.sampling, generated);
      all_sampled[step.request] = answer.token;
      look_ahead(step, answer);
      if (step.sampling.top_logprobs >= 0) {
        answer.logprobs = model.logprobs(attended, position, answer.token, step.sampling);
      }
    }
    result.tokens.push_back(std::move(answer));
  }

  // As HeadAndSampler: what needs logits is not looked ahead of, and nothing behind an end.
  void look_ahead(const SequenceStep& step, SampledToken& answer) const {
    if (!step.sampling.grammar || !step.sampling.banned.empty() || step.sampling.top_logprobs >= 0) return;
    for (int32_t token = answer.token; token != model.eos_token;) {
      token = model.only_behind(token);
      if (token < 0 || std::cmp_greater_equal(answer.forced.size(), step.forced_limit)) return;
      answer.forced.push_back(token);
    }
  }

  RunnerFacts facts_;
  std::vector<Slot> slots_, host_slots_;
  std::vector<int32_t> users_;  // of each page, in the batch being checked
  const PagePool* pool_ = nullptr;
  std::deque<Batch> in_flight_;
  std::deque<BatchResult> results_;  // of the oldest in flight, where they are known before the poll
  std::optional<StoredRows> stored_;
  mutable int looks_ = 0;  // at stored_, since the last poll
  uint64_t kv_epoch_ = 0;
  std::map<ReqId, int32_t> sampled_;  // by the batch polled last
  int polls_left_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace millrace::testing
