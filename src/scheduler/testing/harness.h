// Harness: a scheduler over a FakeRunner, and a consumer that holds the scheduler's output to its promises (one start,
// then tokens, then one finish, for each id) and keeps each request's text. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <vector>

#include "scheduler/scheduler.h"
#include "scheduler/testing/fake_runner.h"

namespace millrace::testing {

// `length` tokens that count up from `first`: prompts with different `first` share no prefix.
inline std::vector<int32_t> prompt(int32_t length, int32_t first = 1) {
  std::vector<int32_t> tokens(static_cast<std::size_t>(length));
  for (int32_t i = 0; i < length; ++i) tokens[static_cast<std::size_t>(i)] = (first + i) % 900;
  return tokens;
}

// 1,000 words, a context of 256 tokens, 256 pages of 16.
inline constexpr RunnerFacts kRoomy{1000, 256, 16, 256};

// The same of a chain of depth - 1 ranges.
inline RunnerFacts chain(int32_t depth) {
  RunnerFacts facts = kRoomy;
  facts.depth = depth;
  facts.token_in_flight = false;
  return facts;
}

// Never ends by itself, so that lengths are known.
inline HashModel endless() {
  HashModel model;
  model.eos_one_in = 0;
  return model;
}

struct Outcome {
  bool accepted = false;
  std::vector<int32_t> tokens;
  Boxed<wire::Finish> finish;
  wire::Usage usage;
  std::vector<wire::TokenLogprobs> logprobs;
  std::vector<wire::TokenLogprobs> prompt_logprobs;
  uint64_t weight_version = 0;     // the newest
  std::vector<uint64_t> versions;  // that made each token
  std::vector<uint64_t> at_steps;  // the step count at which each token came
};

class Harness {
 public:
  Harness(RunnerFacts facts, SchedulerOptions options, HashModel model = {})
      : runner(facts, model), scheduler(with_eos(std::move(options), model), runner) {
    runner.watch(&scheduler.memory_for_test().pool());
  }

  static wire::TokenizedRequest request(uint64_t id, std::vector<int32_t> prompt, int32_t max_tokens) {
    wire::TokenizedRequest request;
    request.id = ReqId{id};
    request.prompt = std::move(prompt);
    request.sampling.max_tokens = max_tokens;
    request.sampling.seed = id * 7 + 1;
    return request;
  }

  void receive(const wire::TokenizedRequest& request, PreparedParts prepared = {}) {
    if (request.sampling.grammar) prepared.grammar = std::make_shared<const grammar::TokenGrammar>();
    scheduler.receive(request, out_, std::move(prepared));
    consume();
  }
  void abort(uint64_t id) {
    scheduler.abort(ReqId{id}, out_);
    consume();
  }
  void switch_weights(const WeightSwitch& wanted) {
    runner.staged = wanted.version;
    const Status status = scheduler.switch_weights(wanted, out_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    consume();
  }
  void pause(InFlightPolicy policy) {
    scheduler.pause(policy, out_);
    consume();
  }
  bool step() {
    const bool busy = scheduler.step(0, out_);
    consume();
    const Status books = scheduler.memory_for_test().verify(!scheduler.busy());
    EXPECT_TRUE(books.ok()) << books.to_string();
    return busy;
  }
  // Until idle. A scheduler that does not come to an end is a failure, not a hang.
  void run(int max_steps = 200000) {
    for (int i = 0; i < max_steps; ++i) {
      if (!step()) return;
    }
    ADD_FAILURE() << "still busy after " << max_steps << " steps";
  }

  // What must hold when everything has ended.
  void expect_clean_end() {
    EXPECT_FALSE(scheduler.busy());
    const SchedulerFacts facts = scheduler.facts();
    EXPECT_EQ(facts.pages_held, 0);
    EXPECT_EQ(facts.pages_free + facts.pages_cached, facts.pages_total);
    EXPECT_EQ(facts.running + facts.waiting, 0);
    EXPECT_EQ(facts.accepted, facts.ended);
    EXPECT_EQ(facts.book_rebuilds, 0u);
    EXPECT_EQ(scheduler.memory_for_test().cache().locked_pages(), 0);
    for (const auto& [id, outcome] : outcomes) EXPECT_TRUE(outcome.finish.has_value()) << "request " << id;
    for (const std::string& violation : runner.violations()) ADD_FAILURE() << violation;
  }

  FakeRunner runner;
  Scheduler scheduler;
  std::map<uint64_t, Outcome> outcomes;

 private:
  static SchedulerOptions with_eos(SchedulerOptions options, const HashModel& model) {
    options.eos_token_ids = {model.eos_token};
    return options;
  }

  void consume() {
    for (const wire::TokenDelta& delta : out_) {
      Outcome& outcome = outcomes[delta.id.value];
      EXPECT_FALSE(outcome.finish.has_value()) << "request " << delta.id.value << " spoke after its end";
      if (delta.start) {
        EXPECT_FALSE(outcome.accepted) << "request " << delta.id.value << " started twice";
        EXPECT_TRUE(delta.tokens.empty() && !delta.finish);
        outcome.accepted = true;
      } else if (!outcome.accepted) {
        EXPECT_TRUE(delta.finish.has_value() && delta.tokens.empty()) << "request " << delta.id.value;
      }
      outcome.tokens.insert(outcome.tokens.end(), delta.tokens.begin(), delta.tokens.end());
      outcome.at_steps.insert(outcome.at_steps.end(), delta.tokens.size(), scheduler.facts().steps);
      outcome.logprobs.insert(outcome.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
      EXPECT_TRUE(delta.prompt_logprobs.empty() || outcome.at_steps.size() == delta.tokens.size())
          << "request " << delta.id.value << ": prompt logprobs after the first token";
      outcome.prompt_logprobs.insert(outcome.prompt_logprobs.end(), delta.prompt_logprobs.begin(),
                                     delta.prompt_logprobs.end());
      outcome.versions.insert(outcome.versions.end(), delta.tokens.size(), delta.weight_version);
      outcome.weight_version = delta.weight_version;
      outcome.finish = delta.finish;
      outcome.usage = delta.usage;
      const bool stopped = delta.finish && delta.finish->matched_token;
      if (outcome.accepted) {
        EXPECT_EQ(delta.usage.completion_tokens, static_cast<int32_t>(outcome.tokens.size()) + (stopped ? 1 : 0));
      }
    }
    out_.clear();
  }

  Scheduler::Deltas out_;
};

}  // namespace millrace::testing
