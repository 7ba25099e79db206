// Prefill and decode speed of one model directory through the real runner, without HTTP, tokenizer or scheduler.
//
//   step_bench MODEL_DIR [threads=0] [batch=1] [prompt=256] [decode=64]
//
// Prefill: `batch` sequences of `prompt` tokens in one step. Decode: `decode` steps of one token for each sequence. The
// token ids are arbitrary; weights are paged in by a first, unmeasured step. The second pair of figures counts the
// process's CPU time instead of the clock's: on a shared machine it is the steadier one, with one thread the same.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "formats/model_config.h"
#include "formats/weights.h"
#include "models/model.h"
#include "runner/model_runner.h"

namespace {

using namespace millrace;

struct Options {
  std::string directory;
  int threads = 0, batch = 1, prompt = 256, decode = 64;
};

// Clock and CPU seconds, of a moment or of a span.
struct Seconds {
  double wall = 0, cpu = 0;
};

Seconds seconds_now() {
  return {std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(),
          static_cast<double>(std::clock()) / CLOCKS_PER_SEC};
}

// `count` tokens for each sequence from `position` on; returns the seconds taken, or dies with the error.
Seconds step_seconds(Runner& runner, const Options& options, int position, int count, int pages_each) {
  Batch batch;
  const RunnerFacts facts = runner.facts();
  for (int s = 0; s < options.batch; ++s) {
    SequenceStep sequence;
    sequence.request = ReqId{static_cast<uint64_t>(s)};
    sequence.position = position;
    sequence.sample = true;
    sequence.sampling.temperature = 0;
    for (int i = 0; i < count; ++i) sequence.tokens.push_back((7919 * (position + i) + 31 * s + 3) % facts.vocab_size);
    for (int i = 0; i < pages_each; ++i) sequence.pages.push_back(s * pages_each + i);
    batch.sequences.push_back(std::move(sequence));
  }
  const Seconds begin = seconds_now();
  const Status submitted = runner.submit(std::move(batch));
  std::optional<BatchResult> result;
  if (submitted.ok()) {
    while (!result) result = runner.poll(1000);
  }
  const Status status = result ? result->status : submitted;
  if (!status.ok()) {
    fmt::print(stderr, "step_bench: {}\n", status.to_string());
    std::exit(2);
  }
  const Seconds end = seconds_now();
  return {end.wall - begin.wall, end.cpu - begin.cpu};
}

Status bench(const Options& options) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(options.directory));
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.directory));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  const double weights_gb = static_cast<double>(store->total_bytes()) / 1e9;
  ASSIGN_OR_RETURN(auto model, load_model(dir.config, store));

  ModelRunnerOptions runner_options;
  runner_options.threads = options.threads;
  const int total = options.prompt + options.decode;
  const int pages_each = (total + runner_options.page_size - 1) / runner_options.page_size;
  runner_options.page_count = pages_each * options.batch;
  ASSIGN_OR_RETURN(auto runner, ModelRunner::make(model, runner_options));

  step_seconds(*runner, options, 0, 1, pages_each);
  const Seconds prefill = step_seconds(*runner, options, 0, options.prompt, pages_each);
  Seconds decode;
  for (int i = 0; i < options.decode; ++i) {
    const Seconds one = step_seconds(*runner, options, options.prompt + i, 1, pages_each);
    decode = {decode.wall + one.wall, decode.cpu + one.cpu};
  }
  const int prefilled = options.batch * options.prompt, decoded = options.batch * options.decode;
  fmt::print("{} ({:.3f} GB), threads {}, batch {}, prompt {}\n", options.directory, weights_gb, options.threads,
             options.batch, options.prompt);
  fmt::print("  prefill {:.1f} tok/s, decode {:.1f} tok/s, {:.2f} ms a step\n", prefilled / prefill.wall,
             decoded / decode.wall, 1e3 * decode.wall / options.decode);
  fmt::print("  by CPU time: prefill {:.1f} tok/s, decode {:.1f} tok/s, {:.2f} ms a step\n", prefilled / prefill.cpu,
             decoded / decode.cpu, 1e3 * decode.cpu / options.decode);
  return ok_status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: step_bench MODEL_DIR [threads=0] [batch=1] [prompt=256] [decode=64]\n");
    return 2;
  }
  Options options;
  options.directory = argv[1];
  int* const numbers[] = {&options.threads, &options.batch, &options.prompt, &options.decode};
  for (int i = 2; i < argc && i < 6; ++i) *numbers[i - 2] = std::atoi(argv[i]);
  const Status status = bench(options);
  if (!status.ok()) {
    fmt::print(stderr, "step_bench: {}\n", status.to_string());
    return 2;
  }
  return 0;
}
