// Prefill and decode speed of one model directory through the real runner, without HTTP, tokenizer or scheduler; and
// how long the compute thread waits between decode steps, with one batch in flight at a time and with two.
//
//   step_bench MODEL_DIR [threads=0] [batch=1] [prompt=256] [decode=64] [rounds=3] [temperature=0] [top_p=1]
//
// Prefill: `batch` sequences of `prompt` tokens in one step. Decode: `decode` steps of one token for each sequence. The
// prompt's ids are arbitrary; weights are paged in by a first, unmeasured step. The pair of figures "by CPU time"
// counts the process's CPU time instead of the clock's: on a shared machine it is the steadier one, with one thread the
// same.
//
// Every round decodes the same steps in both ways, one after the other, so that both see the same machine: "one in
// flight" polls a step before it submits the next; "two in flight" submits step N+1 with kTokenInFlight while N runs.
// The tokens must be the same. Idle is what the runner says (BatchResult::idle_us), the first step of each way left
// out. `handover` is the clock's time of a step that has nothing to compute: from submit() to the return of poll().
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>

#include "base/cpu_info.h"
#include "formats/model_config.h"
#include "formats/weights.h"
#include "models/model.h"
#include "runner/model_runner.h"

namespace {

using namespace millrace;

struct Options {
  std::string directory;
  int threads = 0, batch = 1, prompt = 256, decode = 64, rounds = 3;
  double temperature = 0, top_p = 1;
  int pages_each = 0;
};

// Clock and CPU seconds, of a moment or of a span.
struct Seconds {
  double wall = 0, cpu = 0;
};

Seconds seconds_now() {
  return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
          static_cast<double>(std::clock()) / CLOCKS_PER_SEC};
}

void add_span(Seconds& sum, const Seconds& begin, const Seconds& end) {
  sum = {sum.wall + end.wall - begin.wall, sum.cpu + end.cpu - begin.cpu};
}

void die_unless(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "step_bench: {}\n", status.to_string());
  std::exit(2);
}

BatchResult wait(Runner& runner) {
  std::optional<BatchResult> result;
  while (!result) result = runner.poll(1000);
  die_unless(result->status);
  for (const SampledToken& token : result->tokens) die_unless(token.status);
  return std::move(*result);
}

// `tokens[s]` for sequence s, from `position` on.
Batch batch_of(const Options& options, int position, const std::vector<std::vector<int32_t>>& tokens) {
  Batch batch;
  for (int s = 0; s < options.batch; ++s) {
    SequenceStep sequence;
    sequence.request = ReqId{static_cast<uint64_t>(s)};
    sequence.tokens = tokens[static_cast<std::size_t>(s)];
    sequence.position = position;
    sequence.sample = true;
    sequence.sampling.temperature = options.temperature;
    sequence.sampling.top_p = options.top_p;
    sequence.sampling.seed = static_cast<uint64_t>(s);
    std::vector<int32_t> pages(static_cast<std::size_t>(options.pages_each));
    std::iota(pages.begin(), pages.end(), s * options.pages_each);
    sequence.pages = std::move(pages);
    batch.sequences.push_back(std::move(sequence));
  }
  return batch;
}

std::vector<std::vector<int32_t>> prompts(const Options& options, int count, int32_t vocab_size) {
  std::vector<std::vector<int32_t>> out(static_cast<std::size_t>(options.batch));
  for (int s = 0; s < options.batch; ++s) {
    for (int i = 0; i < count; ++i) out[static_cast<std::size_t>(s)].push_back((7919 * i + 31 * s + 3) % vocab_size);
  }
  return out;
}

std::vector<std::vector<int32_t>> tokens_of(const BatchResult& result) {
  std::vector<std::vector<int32_t>> out;
  for (const SampledToken& token : result.tokens) out.push_back({token.token});
  return out;
}

// What one way of decoding took: the clock's time as the caller sees it, and the compute thread's own account.
struct Decode {
  Seconds seconds;
  double compute_us = 0, idle_us = 0;
  int steps = 0, idle_steps = 0;
  std::vector<std::vector<int32_t>> last;  // tokens of the last step, to be compared

  void settle(const BatchResult& result, bool first) {
    compute_us += static_cast<double>(result.compute_us);
    ++steps;
    last = tokens_of(result);
    if (first) return;
    idle_us += static_cast<double>(result.idle_us);
    ++idle_steps;
  }
  double step_ms() const { return 1e3 * seconds.wall / steps; }
  double idle_step_us() const { return idle_us / idle_steps; }
  double idle_share() const { return idle_step_us() / (idle_step_us() + compute_us / steps); }
};

void decode_one_in_flight(Runner& runner, const Options& options, std::vector<std::vector<int32_t>> tokens,
                          Decode& out) {
  const Seconds begin = seconds_now();
  for (int i = 0; i < options.decode; ++i) {
    die_unless(runner.submit(batch_of(options, options.prompt + i, tokens)));
    const BatchResult result = wait(runner);
    out.settle(result, i == 0);
    tokens = tokens_of(result);
  }
  add_span(out.seconds, begin, seconds_now());
}

void decode_two_in_flight(Runner& runner, const Options& options, const std::vector<std::vector<int32_t>>& tokens,
                          Decode& out) {
  const std::vector<std::vector<int32_t>> waiting(tokens.size(), {kTokenInFlight});
  const Seconds begin = seconds_now();
  die_unless(runner.submit(batch_of(options, options.prompt, tokens)));
  for (int i = 0; i < options.decode; ++i) {
    if (i + 1 < options.decode) die_unless(runner.submit(batch_of(options, options.prompt + i + 1, waiting)));
    out.settle(wait(runner), i == 0);
  }
  add_span(out.seconds, begin, seconds_now());
}

// The median of a hundred empty steps: what both handovers between the threads take, in microseconds.
double handover_us(Runner& runner) {
  std::vector<double> taken;
  for (int i = 0; i < 100; ++i) {
    const Seconds begin = seconds_now();
    die_unless(runner.submit({}));
    wait(runner);
    taken.push_back(1e6 * (seconds_now().wall - begin.wall));
  }
  std::nth_element(taken.begin(), taken.begin() + 50, taken.end());
  return taken[50];
}

void print_way(const char* name, const Decode& decode) {
  fmt::print("  {}: {:.3f} ms a step, of it computing {:.3f}; idle {:.1f} us a step, {:.2f} %\n", name,
             decode.step_ms(), decode.compute_us / decode.steps / 1e3, decode.idle_step_us(),
             100 * decode.idle_share());
}

Status bench(Options options) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.directory));
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.directory));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  const double weights_gb = static_cast<double>(store->total_bytes()) / 1e9;
  const Seconds before_load = seconds_now();
  ThreadPool load_pool(options.threads > 0 ? options.threads : cpu_info().usable_cpus);
  LoadOptions load{.pool = &load_pool};
  ASSIGN_OR_RETURN(load.isa, kernels::resolve_isa());
  ASSIGN_OR_RETURN(auto model, load_model(dir.config, store, 1, load));
  Seconds loading;
  add_span(loading, before_load, seconds_now());
  fmt::print("{}: loaded and packed for {} in {:.2f} s ({:.2f} s of CPU time)\n", options.directory,
             kernels::isa_name(load.isa), loading.wall, loading.cpu);

  RunnerOptions runner_options;
  runner_options.threads = options.threads;
  const int total = options.prompt + options.decode;
  options.pages_each = (total + runner_options.page_size - 1) / runner_options.page_size;
  runner_options.page_count = options.pages_each * options.batch;
  ASSIGN_OR_RETURN(auto runner, ModelRunner::make(model, runner_options));

  const int32_t vocab_size = runner->facts().vocab_size;
  die_unless(runner->submit(batch_of(options, 0, prompts(options, 1, vocab_size))));
  wait(*runner);
  const Seconds begin = seconds_now();
  die_unless(runner->submit(batch_of(options, 0, prompts(options, options.prompt, vocab_size))));
  const auto first = tokens_of(wait(*runner));
  Seconds prefill;
  add_span(prefill, begin, seconds_now());

  Decode one, two;
  for (int round = 0; round < options.rounds; ++round) {
    decode_one_in_flight(*runner, options, first, one);
    decode_two_in_flight(*runner, options, first, two);
    if (one.last != two.last) return internal_error("two batches in flight gave other tokens than one");
  }
  const int prefilled = options.batch * options.prompt, decoded = options.batch * one.steps;
  fmt::print("{} ({:.3f} GB), threads {}, batch {}, prompt {}, temperature {}, top_p {}\n", options.directory,
             weights_gb, options.threads, options.batch, options.prompt, options.temperature, options.top_p);
  fmt::print("  prefill {:.1f} tok/s, decode {:.1f} tok/s, {:.2f} ms a step\n", prefilled / prefill.wall,
             decoded / one.seconds.wall, one.step_ms());
  fmt::print("  by CPU time: prefill {:.1f} tok/s, decode {:.1f} tok/s, {:.2f} ms a step\n", prefilled / prefill.cpu,
             decoded / one.seconds.cpu, 1e3 * one.seconds.cpu / one.steps);
  print_way("one in flight", one);
  print_way("two in flight", two);
  fmt::print("  handover {:.1f} us\n", handover_us(*runner));
  return ok_status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr,
               "usage: step_bench MODEL_DIR [threads=0] [batch=1] [prompt=256] [decode=64] [rounds=3] "
               "[temperature=0] [top_p=1]\n");
    return 2;
  }
  Options options;
  options.directory = argv[1];
  int* const numbers[] = {&options.threads, &options.batch, &options.prompt, &options.decode, &options.rounds};
  for (int i = 2; i < argc && i < 7; ++i) *numbers[i - 2] = std::atoi(argv[i]);
  if (argc > 7) options.temperature = std::atof(argv[7]);
  if (argc > 8) options.top_p = std::atof(argv[8]);
  if (options.batch < 1 || options.prompt < 1 || options.decode < 2 || options.rounds < 1) {
    fmt::print(stderr, "step_bench: wanted batch, prompt and rounds >= 1, decode >= 2\n");
    return 2;
  }
  const Status status = bench(options);
  if (!status.ok()) {
    fmt::print(stderr, "step_bench: {}\n", status.to_string());
    return 2;
  }
  return 0;
}
