// millrace bench offline: a model's prefill and decode steps through the real runner, and where their time goes.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "app/bench.h"
#include "app/model_source.h"
#include "app/output.h"
#include "base/cpu_info.h"
#include "models/model.h"
#include "pipeline/supervisor.h"
#include "runner/model_runner.h"
#include "stages/generating/loading.h"

namespace millrace {
namespace {

constexpr int32_t kPageSize = 16;
constexpr int64_t kReadBytes = 1 << 30;  // of the read that measures the memory: far more than the caches
constexpr int64_t kReadPartBytes = 8 << 20;
constexpr int64_t kLineBytes = 64;
// The faster one depends on the processor: kernels/cpu/prefetch_distance.cc.
constexpr int64_t kPrefetchBytes[] = {256, 4096};
constexpr int kReadPasses = 6;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads every cache line, asking for those ahead: one load a line leaves the memory the only limit.
uint64_t sum_words(const std::byte* from, int64_t bytes, int64_t ahead) {
  uint64_t sum = 0;
  for (int64_t at = 0; at < bytes; at += kLineBytes) {
    __builtin_prefetch(from + at + ahead);
    uint64_t word = 0;
    std::memcpy(&word, from + at, sizeof word);
    sum += word;
  }
  return sum;
}

// Bytes a second that all threads together read from memory.
double read_bandwidth(int threads) {
  ThreadPool pool(threads);
  Buffer buffer(kReadBytes);
  (void)::madvise(buffer.data(), kReadBytes, MADV_HUGEPAGE);
  std::memset(buffer.data(), 0, kReadBytes);
  double best = 0;
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const double begin = now_s();
    pool.parallel_for(kReadBytes / kReadPartBytes, 1, [&](int64_t from, int64_t to, int) {
      const int64_t ahead = kPrefetchBytes[pass % 2];
      CHECK(sum_words(buffer.data() + from * kReadPartBytes, (to - from) * kReadPartBytes, ahead) == 0);
    });
    best = std::max(best, static_cast<double>(kReadBytes) / (now_s() - begin));
  }
  return best;
}

// A table of the operations, the slowest first: milliseconds a step, share, and what the machine did in it.
std::string op_table(const OpMeters& meters, int steps, double bandwidth) {
  std::vector<std::size_t> ranking;
  double all = 0;
  for (std::size_t i = 0; i < meters.size(); ++i) {
    ranking.push_back(i);
    all += static_cast<double>(meters[i].ns);
  }
  std::sort(ranking.begin(), ranking.end(), [&](std::size_t a, std::size_t b) { return meters[a].ns > meters[b].ns; });
  std::string out = fmt::format("    {:<12}{:>10}{:>8}{:>10}{:>12}{:>12}\n", "operation", "ms/step", "share", "GB/s",
                                "of memory", "Gop/s");
  for (const std::size_t i : ranking) {
    const OpMeter& m = meters[i];
    if (m.calls == 0) continue;
    const auto ns = static_cast<double>(std::max<int64_t>(m.ns, 1));
    out +=
        fmt::format("    {:<12}{:>10.3f}{:>7.1f}%", op_name(static_cast<OpKind>(i)), ns / 1e6 / steps, 100 * ns / all);
    out += m.bytes > 0 ? fmt::format("{:>10.1f}{:>11.0f}%", m.bytes / ns, 100 * m.bytes / ns * 1e9 / bandwidth)
                       : fmt::format("{:>22}", "");
    out += fmt::format("{:>12.1f}\n", m.operations / ns);
  }
  return out;
}

class Offline {
 public:
  Offline(const BenchOfflineOptions& options, double bandwidth, std::FILE* out)
      : options_(options), bandwidth_(bandwidth), out_(out) {}

  Status load() {
    ModelOptions model;
    ASSIGN_OR_RETURN(const ModelSource source, cached_source(options_.model, ""));
    model.model = source.path;
    model.threads = options_.threads;
    model.quantize = options_.quantize;
    model.activations = options_.activations;
    model.packed_cache_dir = options_.packed_cache_dir;
    const double begin = now_s();
    ASSIGN_OR_RETURN(model_, load_weights(model, [](const std::string&, double) {}));
    std::fprintf(out_, "loaded in %.2f s\n", now_s() - begin);
    const int most = *std::max_element(options_.batches.begin(), options_.batches.end());
    const int longest = std::max(options_.prompt, kPageSize + options_.depth + options_.decode);
    pages_each_ = (longest + kPageSize - 1) / kPageSize;
    ASSIGN_OR_RETURN(const DType kv_dtype, kv_dtype_from_name(options_.kv_dtype));
    ASSIGN_OR_RETURN(const kernels::Activations activations, kernels::activations_from_name(options_.activations));
    ASSIGN_OR_RETURN(runner_, ModelRunner::make(model_, {.threads = options_.threads,
                                                         .page_size = kPageSize,
                                                         .page_count = pages_each_ * most,
                                                         .kv_dtype = kv_dtype,
                                                         .activations = activations,
                                                         .meters = &meters_}));
    return ok_status();
  }

  // Tokens a second of one prompt that is prefilled in steps of the runner's own size.
  Result<double> prefill() {
    std::vector<double> seconds;
    for (int round = -1; round < options_.rounds; ++round) {
      if (round == 0) meters_ = {};
      const double begin = now_s();
      RETURN_IF_ERROR(step(1, 0, options_.prompt));
      if (round >= 0) seconds.push_back(now_s() - begin);
    }
    const double rate = options_.prompt / median(std::move(seconds));
    std::fprintf(out_, "prefill of %d tokens: %.1f tokens/s\n%s", options_.prompt, rate,
                 op_table(meters_, options_.rounds, bandwidth_).c_str());
    return rate;
  }

  // Tokens a second of `batch` sequences together.
  Result<double> decode(int batch) {
    const int begin_at = std::max(1, options_.depth);
    for (int done = 0; done < begin_at;) {
      const int count = std::min(begin_at - done, static_cast<int>(kMaxRowsPerStep) / std::min(batch, 64));
      RETURN_IF_ERROR(step(batch, done, std::max(count, 1)));
      done += std::max(count, 1);
    }
    std::vector<double> seconds;
    for (int round = -1; round < options_.rounds; ++round) {
      if (round == 0) meters_ = {};
      const double begin = now_s();
      for (int i = 0; i < options_.decode; ++i) RETURN_IF_ERROR(step(batch, begin_at + i, 1));
      if (round >= 0) seconds.push_back(now_s() - begin);
    }
    const double rate = batch * options_.decode / median(std::move(seconds));
    std::fprintf(out_, "decode of %d sequences at depth %d: %.1f tokens/s\n%s", batch, begin_at, rate,
                 op_table(meters_, options_.rounds * options_.decode, bandwidth_).c_str());
    return rate;
  }

 private:
  // One batch: `count` tokens of each of `sequences`, standing at `position`.
  Status step(int sequences, int position, int count) {
    Batch batch;
    const int32_t vocabulary = runner_->facts().vocab_size;
    for (int s = 0; s < sequences; ++s) {
      SequenceStep one;
      one.request = ReqId{static_cast<uint64_t>(s)};
      one.position = position;
      one.sample = true;
      one.sampling.temperature = 0;
      for (int i = 0; i < count; ++i) one.tokens.push_back((7919 * (position + i) + 31 * s + 3) % vocabulary);
      std::vector<int32_t> pages(static_cast<std::size_t>(pages_each_));
      std::iota(pages.begin(), pages.end(), s * pages_each_);
      one.pages = std::move(pages);
      batch.sequences.push_back(std::move(one));
    }
    RETURN_IF_ERROR(runner_->submit(std::move(batch)));
    std::optional<BatchResult> result;
    while (!result) result = runner_->poll(1000);
    RETURN_IF_ERROR(result->status);
    for (const SampledToken& token : result->tokens) RETURN_IF_ERROR(token.status);
    return ok_status();
  }

  const BenchOfflineOptions& options_;
  const double bandwidth_;
  std::FILE* const out_;
  OpMeters meters_{};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<ModelRunner> runner_;
  int pages_each_ = 0;
};

Result<std::string> measure(const BenchOfflineOptions& options, int threads) {
  // The table goes to stderr where the figures are wanted by a program.
  std::FILE* out = options.json == "-" ? stderr : stdout;
  const double bandwidth = read_bandwidth(threads);
  ASSIGN_OR_RETURN(const kernels::Isa resolved, kernels::resolve_isa());
  const std::string isa(kernels::isa_name(resolved));
  std::fprintf(out, "%s, %d threads, %s, memory read %.1f GB/s\n", cpu_info().brand.c_str(), threads, isa.c_str(),
               bandwidth / 1e9);
  Offline bench(options, bandwidth, out);
  RETURN_IF_ERROR(bench.load());
  ASSIGN_OR_RETURN(const double prefill, bench.prefill());
  std::string json =
      fmt::format(R"({{"threads":{},"read_bytes_per_s":{:.0f},"prompt":{},"prefill_tokens_per_s":{:.3f},)"
                  R"("depth":{},"decode":[)",
                  threads, bandwidth, options.prompt, prefill, options.depth);
  for (std::size_t i = 0; i < options.batches.size(); ++i) {
    ASSIGN_OR_RETURN(const double rate, bench.decode(options.batches[i]));
    json += fmt::format(R"({}{{"batch":{},"tokens_per_s":{:.3f}}})", i > 0 ? "," : "", options.batches[i], rate);
  }
  return json + "]}\n";
}

}  // namespace

int run_bench_offline(const BenchOfflineOptions& options) {
  if (const auto isa = kernels::resolve_isa(); !isa.ok()) return print_error(isa.status()), kExitBadInput;
  const int threads = options.threads > 0 ? options.threads : cpu_info().usable_cpus;
  const auto json = measure(options, threads);
  if (!json.ok()) return print_error(json.status()), kExitBadInput;
  if (options.json.empty()) return 0;
  if (Status status = write_text(options.json, *json); !status.ok()) return print_error(status), 1;
  return 0;
}

}  // namespace millrace
