// When first tokens come under load, without a model: the scheduler over a runner whose time for a step is a formula,
// and clients that ask again when they are answered, in a time of their own. The same arguments give the same figures
// on every machine, so two schedulers are compared by one run each; what a step takes was fitted to a trace of the
// Qwen3-0.6B shape in q8_0 with two threads.
//
//   first_token_bench [clients=16] [requests=64] [groups=4] [prefix=1024] [own=16] [lengths=1] [answer=16] [chunk=512]
//
// A prompt is one of `groups` beginnings of `prefix` tokens, in turns, and `own` tokens of its own, times one of 1 to
// `lengths` by a hash.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/scheduler.h"

namespace {

using namespace millrace;

constexpr int32_t kVocabulary = 32000, kContext = 16384, kPages = 20000, kPageTokens = 16;
constexpr double kStepUs = 35'000;        // reading the weights
constexpr double kFewQueriesUs = 20'000;  // attention of sequences of few rows, the first of them
constexpr double kRowUs = 1750;           // a row's products
constexpr int32_t kFewQueries = 64;       // rows of a sequence, from which on its attention is faster
constexpr double kFewPositionsUs = 2.0;   // a row and position before it
constexpr double kManyPositionsUs = 1.4;  // the same of kFewQueries rows and more
constexpr int64_t kClientUs = 3000;       // from an answer to the next request
constexpr int kLongestWaitMs = 1000;      // of one turn of the scheduler

struct Options {
  int32_t clients = 16, requests = 64, groups = 4, prefix = 1024, own = 16, lengths = 1, answer = 16, chunk = 512;
};

double step_us(const Batch& batch) {
  double us = kStepUs;
  bool few = false;
  for (const SequenceStep& step : batch.sequences) {
    const auto rows = static_cast<double>(step.tokens.size());
    const bool is_few = step.tokens.size() < kFewQueries;
    few = few || is_few;
    us += rows * (kRowUs + (step.position + rows / 2) * (is_few ? kFewPositionsUs : kManyPositionsUs));
  }
  return us + (few ? kFewQueriesUs : 0);
}

// Samples the same token for every row that samples.
class FormulaRunner final : public Runner {
 public:
  FormulaRunner(RunnerFacts facts, int64_t& now_us) : facts_(facts), now_us_(now_us) {}
  RunnerFacts facts() const override { return facts_; }
  Status submit(Batch batch) override {
    const int64_t begin_us = queued_.empty() ? now_us_ : queued_.back().end_us;
    const auto took_us = static_cast<int64_t>(step_us(batch));
    queued_.push_back({std::move(batch), took_us, begin_us + took_us});
    return ok_status();
  }
  // Waits until the oldest batch ends, but not beyond `wake_us`.
  std::optional<BatchResult> poll(int timeout_ms) override {
    const int64_t until_us = std::min(now_us_ + int64_t{timeout_ms} * 1000, wake_us);
    now_us_ = std::max(now_us_, std::min(until_us, queued_.front().end_us));
    if (queued_.front().end_us > now_us_) return std::nullopt;
    BatchResult result;
    result.step = queued_.front().batch.step;
    result.weight_version = 1;
    result.compute_us = queued_.front().took_us;
    for (const SequenceStep& step : queued_.front().batch.sequences) {
      if (step.sample) result.tokens.push_back({.request = step.request, .token = 7});
    }
    queued_.pop_front();
    return result;
  }

  int64_t wake_us = INT64_MAX;

 private:
  struct Queued {
    Batch batch;
    int64_t took_us = 0, end_us = 0;
  };
  RunnerFacts facts_;
  int64_t& now_us_;
  std::deque<Queued> queued_;
};

wire::TokenizedRequest request_of(const Options& options, int32_t number) {
  wire::TokenizedRequest request;
  request.id = ReqId{static_cast<uint64_t>(number)};
  for (int32_t i = 0; i < options.prefix; ++i) {
    request.prompt.push_back((number % options.groups * 5001 + i * 7) % kVocabulary);
  }
  const int32_t times = 1 + static_cast<int32_t>((static_cast<uint32_t>(number) * 2654435761u >> 8) %
                                                 static_cast<uint32_t>(options.lengths));
  for (int32_t i = 0; i < options.own * times; ++i) request.prompt.push_back((number * 977 + i * 31) % kVocabulary);
  request.sampling.max_tokens = options.answer;
  request.sampling.ignore_eos = true;
  return request;
}

// A closed loop of clients, and when each first token came.
class Load {
 public:
  explicit Load(const Options& options) : options_(options), runner_(facts(), now_us_) {
    SchedulerOptions chosen;
    chosen.chunked_prefill_tokens = options.chunk;
    chosen.now_us = [this] { return now_us_; };
    scheduler_ = std::make_unique<Scheduler>(chosen, runner_);
    begun_us_.resize(static_cast<std::size_t>(options.requests));
    first_ms_.resize(static_cast<std::size_t>(options.requests), -1);
    while (next_ < std::min(options.clients, options.requests)) arrivals_.emplace(0, next_++);
  }

  void run() {
    while (ended_ < options_.requests) {
      while (!arrivals_.empty() && arrivals_.begin()->first <= now_us_) {
        const int32_t number = arrivals_.begin()->second;
        arrivals_.erase(arrivals_.begin());
        begun_us_[static_cast<std::size_t>(number)] = now_us_;
        scheduler_->receive(request_of(options_, number), out_);
      }
      runner_.wake_us = arrivals_.empty() ? INT64_MAX : arrivals_.begin()->first;
      const bool busy = scheduler_->step(kLongestWaitMs, out_);
      take();
      if (!busy && !arrivals_.empty()) now_us_ = std::max(now_us_, arrivals_.begin()->first);
    }
  }

  void print() const {
    std::vector<double> sorted = first_ms_;
    std::ranges::sort(sorted);
    const auto at = [&](double part) { return sorted[static_cast<std::size_t>(part * (options_.requests - 1))]; };
    const SchedulerFacts facts = scheduler_->facts();
    fmt::print("{:.2f} requests/s, {} steps, {} prefill rows, {} decode rows\n",
               1e6 * options_.requests / static_cast<double>(now_us_), facts.steps, facts.prefill_rows,
               facts.decode_rows);
    fmt::print("first token, ms: mean {:.0f}, p50 {:.0f}, p90 {:.0f}, p99 {:.0f}, longest {:.0f}\n",
               std::accumulate(sorted.begin(), sorted.end(), 0.0) / options_.requests, at(0.5), at(0.9), at(0.99),
               sorted.back());
  }

 private:
  static RunnerFacts facts() {
    RunnerFacts facts{kVocabulary, kContext, kPageTokens, kPages};
    facts.weight_version = 1;
    return facts;
  }

  void take() {
    for (const wire::TokenDelta& delta : out_) {
      double& first = first_ms_[static_cast<std::size_t>(delta.id.value)];
      const int64_t begun_us = begun_us_[static_cast<std::size_t>(delta.id.value)];
      if (!delta.tokens.empty() && first < 0) first = static_cast<double>(now_us_ - begun_us) / 1e3;
      if (!delta.finish) continue;
      ++ended_;
      if (next_ < options_.requests) arrivals_.emplace(now_us_ + kClientUs, next_++);
    }
    out_.clear();
  }

  const Options options_;
  int64_t now_us_ = 0;
  FormulaRunner runner_;
  std::unique_ptr<Scheduler> scheduler_;
  Scheduler::Deltas out_;
  std::multimap<int64_t, int32_t> arrivals_;
  std::vector<int64_t> begun_us_;
  std::vector<double> first_ms_;
  int32_t next_ = 0, ended_ = 0;
};

// name=value, value at least 1 (a prefix 0).
bool read(Options& options, std::string_view argument) {
  const std::map<std::string_view, int32_t*> known = {{"clients", &options.clients}, {"requests", &options.requests},
                                                      {"groups", &options.groups},   {"prefix", &options.prefix},
                                                      {"own", &options.own},         {"lengths", &options.lengths},
                                                      {"answer", &options.answer},   {"chunk", &options.chunk}};
  const std::size_t equals = argument.find('=');
  const auto found = known.find(argument.substr(0, equals));
  if (equals == std::string_view::npos || found == known.end()) return false;
  const std::string_view value = argument.substr(equals + 1);
  const auto [end, fault] = std::from_chars(value.data(), value.data() + value.size(), *found->second);
  return fault == std::errc() && end == value.data() + value.size() &&
         *found->second >= (found->first == "prefix" ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (read(options, argv[i])) continue;
    fmt::print(stderr, "first_token_bench: '{}'; wanted NAME=NUMBER, see the head of bench/first_token_bench.cc\n",
               argv[i]);
    return 2;
  }
  Load load(options);
  load.run();
  load.print();
  return 0;
}
