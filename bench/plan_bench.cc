// What the scheduler does for one step of many long sequences, without a model: the time of Scheduler::step() and the
// bytes that it allocates, which is what it copies for the runner. Two batches are in flight, as in a server.
//
//   plan_bench [sequences=256] [tokens=4096] [biases=300] [steps=200]
//
// Every sequence begins with a prompt of 16 tokens of its own, has a presence penalty and `biases` biases, and decodes
// until it has `tokens` tokens; then `steps` steps are measured.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <new>

#include "scheduler/scheduler.h"

namespace {

bool counting = false;
int64_t allocated_bytes = 0;

}  // namespace

void* operator new(std::size_t size) {
  if (counting) allocated_bytes += static_cast<int64_t>(size);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using namespace millrace;

constexpr int kPrompt = 16;
constexpr int kVocabulary = 32000;

// Samples the same token for everybody, at once.
class ConstantRunner final : public Runner {
 public:
  explicit ConstantRunner(RunnerFacts facts) : facts_(facts) {}
  RunnerFacts facts() const override { return facts_; }
  Status submit(Batch batch) override {
    queued_.push_back(std::move(batch));
    return ok_status();
  }
  std::optional<BatchResult> poll(int) override {
    const bool before = counting;
    counting = false;
    BatchResult result;
    const Batch batch = std::move(queued_.front());
    queued_.pop_front();
    result.step = batch.step;
    result.weight_version = 1;
    for (const SequenceStep& step : batch.sequences) {
      if (step.sample) result.tokens.push_back({.request = step.request, .token = 7});
    }
    counting = before;
    return result;
  }

 private:
  RunnerFacts facts_;
  std::deque<Batch> queued_;
};

wire::TokenizedRequest request_of(int id, int tokens, int biases) {
  wire::TokenizedRequest request;
  request.id = ReqId{static_cast<uint64_t>(id) + 1};
  for (int i = 0; i < kPrompt; ++i) request.prompt.push_back((id * kPrompt + i) % kVocabulary);
  request.sampling.max_tokens = 2 * tokens;
  request.sampling.presence_penalty = 0.5;
  request.sampling.ignore_eos = true;
  for (int i = 0; i < biases; ++i) request.sampling.logit_bias.push_back({i, 0.5});
  return request;
}

int argument(int argc, char** argv, int index, int fallback) {
  return argc > index ? std::max(1, std::atoi(argv[index])) : fallback;
}

}  // namespace

int main(int argc, char** argv) {
  const int sequences = argument(argc, argv, 1, 256), tokens = argument(argc, argv, 2, 4096);
  const int biases = argument(argc, argv, 3, 300), steps = argument(argc, argv, 4, 200);
  RunnerFacts facts;
  facts.vocab_size = kVocabulary;
  facts.context_length = 2 * tokens + kPrompt;
  facts.page_size = 16;
  facts.page_count = sequences * (facts.context_length / facts.page_size + 1);
  facts.weight_version = 1;
  ConstantRunner runner(facts);
  SchedulerOptions options;
  options.chunked_prefill_tokens = sequences * kPrompt;
  options.now_us = [] { return int64_t{0}; };
  Scheduler scheduler(options, runner);
  Scheduler::Deltas out;
  for (int id = 0; id < sequences; ++id) scheduler.receive(request_of(id, tokens, biases), out);
  for (int i = 0; i < tokens - kPrompt; ++i) {
    scheduler.step(0, out);
    out.clear();
  }
  const auto begin = std::chrono::steady_clock::now();
  counting = true;
  for (int i = 0; i < steps; ++i) {
    scheduler.step(0, out);
    out.clear();
  }
  counting = false;
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
  fmt::print("{} sequences of {} tokens, {} biases, {} running: {} bytes and {:.0f} us a step\n", sequences, tokens,
             biases, scheduler.facts().running, allocated_bytes / steps, taken.count() / steps);
  return 0;
}
