// World: one random machine, configuration and life of requests, all from a seed, and the judge of what came out. The
// oracle is predict(): a plain loop over a list of tokens that knows nothing of pages, chunks, batches, caches,
// retraction or overlap. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "scheduler/testing/harness.h"
#include "scheduler/testing/predict.h"

namespace millrace::testing {

// How often the rarer things happened, over all worlds: a suite that never retracts proves nothing about retraction.
struct WorldCounts {
  uint64_t retractions = 0, preempted = 0, deferred = 0, cached_tokens = 0, host_tokens = 0, wasted_rows = 0,
           bubbles = 0, full_depth = 0;
  uint64_t stopped = 0, lengths = 0, pool_ends = 0, aborted = 0, rejected = 0, dropped = 0, deadlines = 0,
           conflicts = 0, faults = 0, new_weights = 0, old_weights = 0, scored = 0, came_again = 0, kv_losses = 0,
           lost = 0, forced = 0;
};

// The runner of a world.
struct WorldRunner {
  int32_t depth = 2;
  bool token_in_flight = true;
  uint64_t kv_lost_every = 0;  // steps, about; 0: never
};

class World {
 public:
  explicit World(uint64_t seed, WorldRunner runner = {})
      : random_(seed), loss_random_(seed), kv_lost_every_(runner.kv_lost_every) {
    facts_.depth = runner.depth;
    facts_.token_in_flight = runner.token_in_flight;
    model_.vocab_size = 200;
    model_.eos_one_in = pick({0u, 15u, 60u});
    make_machine();
    make_options();
    prefix_ = random_tokens(facts_.context_length / pick({2, 8}));
    const int count = pick({3, 8, 20});
    for (int i = 0; i < count; ++i) add_request(static_cast<uint64_t>(i + 1));
    if (pick({0, 0, 0, 1}) == 1) new_weights_at_ = random_() % 80;
    if (pick({0, 0, 0, 1}) == 1) paused_at_ = random_() % 80;
    policy_ = pick({InFlightPolicy::kInPlace, InFlightPolicy::kRetract});
    flush_ = pick({false, true});
    fault_ = pick({0, 0, 0, 0, 0, 1, 2, 3});
  }

  void run(WorldCounts& counts) {
    Harness harness(facts_, options_, model_);
    prepare(harness.runner);
    uint64_t now = 0;
    for (; !arrivals_.empty() || !aborts_.empty() || harness.scheduler.busy(); ++now) {
      ASSERT_LT(now, 100000u) << "no end in sight";
      now_us_ += 1000;
      if (now == new_weights_at_) harness.switch_weights({.version = 2, .policy = policy_, .flush_cache = flush_});
      if (now == paused_at_) harness.pause(policy_);
      if (now == paused_at_ + 7) harness.scheduler.resume();
      for (; !arrivals_.empty() && arrivals_.begin()->first <= now; arrivals_.erase(arrivals_.begin())) {
        receive(harness, arrivals_.begin()->second);
      }
      for (; !aborts_.empty() && aborts_.begin()->first <= now; aborts_.erase(aborts_.begin())) {
        abort(harness, aborts_.begin()->second);
      }
      if (kv_lost_every_ > 0 && loss_random_() % kv_lost_every_ == 0) lose_kv(harness.runner);
      harness.step();
      if (::testing::Test::HasFailure()) return;
    }
    harness.expect_clean_end();
    count(harness, counts);
    for (const auto& [id, life] : lives_) {
      ended_.emplace_back(life, harness.outcomes.at(id));
    }
    for (const auto& [life, outcome] : ended_)
      check_outcome(life, outcome, harness.scheduler.facts().weight_version, counts);
  }

 private:
  // A request as it was sent, and what else may rightly become of it.
  struct Life {
    wire::TokenizedRequest request;
    uint64_t version_at_start = 0;  // the newest that the scheduler had seen; 0: none
    bool came_twice = false;
    bool aborted = false;
  };

  template <typename T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[random_() % choices.size()];
  }
  std::vector<int32_t> random_tokens(int32_t count) {
    std::vector<int32_t> tokens(static_cast<std::size_t>(std::max(count, 0)));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 200);
    return tokens;
  }

  void make_machine() {
    facts_.vocab_size = 200;
    facts_.page_size = pick({1, 16, 64});
    facts_.context_length = pick({48, 130, 300});
    const int32_t context_pages = (facts_.context_length + facts_.page_size - 1) / facts_.page_size;
    // From too small for one full context to roomy.
    facts_.page_count = std::max(1, context_pages * pick({1, 2, 3, 3, 5, 12}) / 2 + pick({0, 1}));
    facts_.host_page_count = pick({0, 0, 2, 40});
    facts_.weight_version = pick({0u, 1u});
  }

  void make_options() {
    options_.chunked_prefill_tokens = pick({1, 5, 16, 64, 512});
    options_.max_running_requests = pick({1, 3, 8, 16});
    options_.max_queued_requests = pick({3, 1000, 1000, 1000});
    options_.max_skips = pick({0, 2, 16});
    options_.conservativeness = pick({0.0, 0.0, 0.3, 1.0});
    options_.prefix_cache = pick({0, 1, 1}) == 1;
    options_.policy = static_cast<Policy>(pick({0, 1, 2, 3, 4, 5, 5}));
    options_.policy_seed = random_();
    options_.priority_preemption_gap = pick({0, 3, 10});
    options_.overlap = pick({0, 1, 1}) == 1;
    options_.max_decode_gap_ms = pick({0, 0, 1, 3});
    options_.cache.eviction = static_cast<EvictionStrategy>(random_() % 7);
    options_.cache.write_policy = static_cast<WritePolicy>(random_() % 3);
    options_.cache.min_load_tokens = pick({1, 16});
    options_.now_us = [this] { return now_us_; };
  }

  void add_request(uint64_t id) {
    // Part of a prefix that all know, then something of one's own; now and then the very prompt of another.
    std::vector<int32_t> prompt(prefix_.begin(),
                                prefix_.begin() + static_cast<std::ptrdiff_t>(random_() % prefix_.size()));
    const std::vector<int32_t> own = random_tokens(static_cast<int32_t>(random_() % 12) + 1);
    prompt.insert(prompt.end(), own.begin(), own.end());
    if (id > 1 && pick({0, 0, 1}) == 1) prompt = lives_.at(1 + random_() % (id - 1)).request.prompt;
    wire::TokenizedRequest request = Harness::request(id, prompt, pick({0, 1, 2, 9, 40, 300}));
    request.priority = pick({0, 0, 1, 5, 20});
    if (pick({0, 1}) == 1) request.extra_key = pick({"a", "b"});
    if (random_() % 8 == 0) request.timeout_ms = pick({1, 20, 1000000});
    if (random_() % 8 == 0) request.queue_timeout_ms = pick({1, 10, 1000000});
    add_sampling(request.sampling, static_cast<int32_t>(prompt.size()));
    if (id % 3 == 0) request.sampling.grammar.emplace();  // text of forced runs
    lives_[id].request = request;
    const uint64_t at = random_() % 60;
    arrivals_.emplace(at, id);
    if (random_() % 6 == 0) aborts_.emplace(at + random_() % 50, id);
    if (random_() % 40 == 0) arrivals_.emplace(at + random_() % 4, id);  // the sender's fault
  }

  void add_sampling(wire::SamplingParams& sampling, int32_t prompt_length) {
    sampling.temperature = pick({0.0, 1.0});
    sampling.ignore_eos = pick({0, 0, 1}) == 1;
    if (pick({0, 0, 1}) == 1) sampling.stop_token_ids = random_tokens(5);
    if (pick({0, 0, 1}) == 1) sampling.min_tokens = std::min(sampling.max_tokens, pick({1, 3, 20}));
    if (random_() % 5 == 0) sampling.top_logprobs = pick({0, 3});
    if (random_() % 9 == 0) sampling.logprob_token_ids = {5, 7};
    if (random_() % 5 == 0) sampling.prompt_logprobs_from = static_cast<int32_t>(random_()) % (prompt_length + 1);
    sampling.prompt_logprobs_from = std::max(-1, sampling.prompt_logprobs_from);
    if (random_() % 5 == 0) sampling.frequency_penalty = 0.5;
    if (random_() % 5 == 0) sampling.repetition_penalty = 1.25;
    if (random_() % 9 == 0) sampling.logit_bias = {{3, 1.5}, {9, -2.0}};
  }

  void prepare(FakeRunner& runner) {
    runner.polls_per_step = pick({0, 0, 1, 3});
    runner.compute_us = [](const Batch& batch) {
      int64_t us = 300;
      for (const SequenceStep& step : batch.sequences) us += 40 * static_cast<int64_t>(step.tokens.size());
      return us;
    };
    const uint64_t salt = random_();
    const auto now_and_then = [salt](uint64_t what) {
      return HashModel::mix(salt, what) % 25 == 0 ? internal_error("a fault") : ok_status();
    };
    if (fault_ == 1) runner.fail_step = [=](const Batch& batch) { return now_and_then(batch.step); };
    if (fault_ == 2) runner.refuse = [=](const Batch& batch) { return now_and_then(batch.step); };
    if (fault_ == 3) {
      runner.fail_row = [=](const SequenceStep& step) {
        return now_and_then(step.request.value * 1000 + static_cast<uint64_t>(step.position));
      };
    }
  }

  // Between two steps, or within the next poll; with some of the batches in flight already computed.
  void lose_kv(FakeRunner& runner) {
    const auto computed = static_cast<std::size_t>(loss_random_() % static_cast<uint64_t>(facts_.depth + 1));
    if (loss_random_() % 2 == 0) return runner.lose_kv(computed);
    runner.on_poll = [&runner, computed] { runner.lose_kv(computed); };
  }

  // An id that comes again: as another request when the one before has ended, else the sender's fault.
  void receive(Harness& harness, uint64_t id) {
    Life& life = lives_.at(id);
    const auto before = harness.outcomes.find(id);
    if (before != harness.outcomes.end()) {
      if (before->second.finish) {
        archive(harness, id);
      } else {
        life.came_twice = true;
      }
    }
    if (!life.came_twice) life.version_at_start = harness.scheduler.facts().weight_version;
    harness.receive(life.request);
  }

  void abort(Harness& harness, uint64_t id) {
    const auto outcome = harness.outcomes.find(id);
    if (outcome == harness.outcomes.end()) return;  // not sent yet
    lives_.at(id).aborted = true;
    harness.abort(id);
    // Half of the aborted come again at once, under the same id, while the runner may still compute for the first.
    if (random_() % 2 == 0 || !outcome->second.finish) return;
    archive(harness, id);
    lives_.at(id).version_at_start = harness.scheduler.facts().weight_version;
    lives_.at(id).request.sampling.seed += 1000;
    lives_.at(id).request.prompt.back() = 77;
    harness.receive(lives_.at(id).request);
  }

  void archive(Harness& harness, uint64_t id) {
    ++came_again_;
    ended_.emplace_back(lives_.at(id), harness.outcomes.at(id));
    harness.outcomes.erase(id);
    lives_.at(id).aborted = lives_.at(id).came_twice = false;
  }

  void count(const Harness& harness, WorldCounts& counts) const {
    const SchedulerFacts facts = harness.scheduler.facts();
    counts.retractions += facts.retractions;
    counts.preempted += facts.preempted;
    counts.deferred += facts.deferred;
    counts.cached_tokens += facts.cached_tokens;
    counts.host_tokens += facts.host_tokens;
    counts.wasted_rows += facts.wasted_rows;
    counts.bubbles += facts.bubbles;
    counts.full_depth += harness.runner.most_in_flight == facts_.depth;
    counts.kv_losses += facts.kv_losses;
    counts.forced += facts.forced_run_tokens;
    counts.came_again += came_again_;
    EXPECT_LE(harness.runner.most_in_flight, options_.overlap ? facts_.depth : 1);
    EXPECT_EQ(facts.prefill_rows + facts.decode_rows, facts.computed_tokens);
    EXPECT_TRUE(options_.policy == Policy::kPriority || facts.preempted + facts.dropped == 0);
  }

  // Under which weights all of it was computed; 0: perhaps under both.
  uint64_t version_of(const Life& life, const Outcome& outcome, uint64_t newest) const {
    if (newest != 2 && outcome.weight_version != 2) return 1;
    if (life.version_at_start == 2) return 2;
    return 0;
  }

  void check_outcome(const Life& life, const Outcome& outcome, uint64_t newest, WorldCounts& counts) const {
    const wire::TokenizedRequest& request = life.request;
    SCOPED_TRACE("request " + std::to_string(request.id.value));
    ASSERT_TRUE(outcome.finish.has_value());
    const wire::Finish& finish = *outcome.finish;
    if (finish.reason == wire::FinishReason::kError) judge_error(life, outcome, counts);
    counts.aborted += finish.reason == wire::FinishReason::kAborted;
    ASSERT_TRUE(finish.reason != wire::FinishReason::kAborted || life.aborted);
    const uint64_t version = version_of(life, outcome, newest);
    if (version == 0) return;
    ++(version == 2 ? counts.new_weights : counts.old_weights);

    const Expected expected = predict(request, model_, version, context_length());
    expect_prefix(outcome.tokens, expected.tokens);
    expect_prefix(outcome.logprobs, expected.logprobs);
    expect_prefix(outcome.prompt_logprobs, expected.prompt_logprobs);
    if (!outcome.tokens.empty()) {
      ASSERT_EQ(outcome.prompt_logprobs.size(), expected.prompt_logprobs.size());
    }
    if (finish.reason != wire::FinishReason::kStop && finish.reason != wire::FinishReason::kLength) return;
    ASSERT_EQ(finish.reason, expected.finish.reason);
    ASSERT_EQ(finish.matched_token, expected.finish.matched_token);
    ASSERT_EQ(outcome.tokens, expected.tokens);
    ASSERT_EQ(outcome.logprobs.size(), expected.logprobs.size());
    ASSERT_EQ(outcome.prompt_logprobs.size(), expected.prompt_logprobs.size());
    counts.scored += expected.prompt_logprobs.size();
    ++(expected.finish.matched_token ? counts.stopped : counts.lengths);
    counts.pool_ends += std::ssize(request.prompt) + std::ssize(outcome.tokens) > pool_tokens();
  }

  template <typename T>
  static void expect_prefix(const std::vector<T>& part, const std::vector<T>& whole) {
    ASSERT_LE(part.size(), whole.size());
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin(), same<T>));
  }

  int32_t pool_tokens() const { return facts_.page_count * facts_.page_size; }
  // A request's last token needs no slot.
  int32_t context_length() const { return std::min(facts_.context_length, pool_tokens() + 1); }

  // Errors must be true: what they say really is so.
  void judge_error(const Life& life, const Outcome& outcome, WorldCounts& counts) const {
    const wire::TokenizedRequest& request = life.request;
    switch (outcome.finish->code) {
      case StatusCode::kResourceExhausted:
        ++counts.rejected;
        ASSERT_LT(options_.max_queued_requests, 1000);
        break;
      case StatusCode::kUnavailable:
        if (outcome.finish->message == "the step failed: a range of the chain is lost") {
          ++counts.lost;
          ASSERT_GT(kv_lost_every_, 0u);
          break;
        }
        ++counts.dropped;
        ASSERT_TRUE(outcome.accepted && options_.policy == Policy::kPriority && options_.max_queued_requests < 1000);
        ASSERT_TRUE(outcome.tokens.empty());
        break;
      case StatusCode::kDeadline:
        ++counts.deadlines;
        ASSERT_TRUE(request.timeout_ms > 0 || (request.queue_timeout_ms > 0 && outcome.tokens.empty()));
        break;
      case StatusCode::kConflict:
        ++counts.conflicts;
        ASSERT_TRUE(life.came_twice);
        break;
      case StatusCode::kInternal:
        ++counts.faults;
        ASSERT_NE(fault_, 0);
        break;
      default:
        ++counts.rejected;
        ASSERT_FALSE(outcome.accepted);
        if (std::ssize(request.prompt) < context_length()) {
          ASSERT_EQ(outcome.finish->code, StatusCode::kInvalidArgument);
          ASSERT_GT(std::ssize(request.prompt) + request.sampling.min_tokens, context_length());
          break;
        }
        ASSERT_EQ(outcome.finish->code, StatusCode::kTooLarge);
    }
  }

  std::mt19937_64 random_;
  std::mt19937_64 loss_random_;
  const uint64_t kv_lost_every_;
  HashModel model_;
  RunnerFacts facts_;
  SchedulerOptions options_;
  int64_t now_us_ = 0;
  uint64_t new_weights_at_ = UINT64_MAX;
  uint64_t paused_at_ = UINT64_MAX - 7;
  InFlightPolicy policy_{};  // of both
  bool flush_ = false;
  int fault_ = 0;  // 1: steps fail, 2: steps are refused, 3: rows fail
  uint64_t came_again_ = 0;
  std::vector<int32_t> prefix_;
  std::map<uint64_t, Life> lives_;
  std::vector<std::pair<Life, Outcome>> ended_;  // whose id came again
  std::multimap<uint64_t, uint64_t> arrivals_;   // time in steps -> request
  std::multimap<uint64_t, uint64_t> aborts_;
};

}  // namespace millrace::testing
