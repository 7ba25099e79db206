// millrace bench: speed, measured. `serve` loads a server with requests; `offline` times a model without one.
// Thread safety: one thread, at the start.
#pragma once

#include <string>
#include <vector>

#include "load/generator.h"

namespace CLI {
class App;
}

namespace millrace {

struct BenchServeOptions {
  std::string url = "http://127.0.0.1:30000";
  load::GeneratorOptions generator;
  load::WorkloadOptions workload;
  std::string kind = "random";
  std::string endpoint = "completions";
  int64_t warmup = 0;  // requests before the ones that count
  int timeout_s = 600;
  std::string json;  // where the figures go; "-": standard output
  std::string plot;  // an SVG file
};

struct BenchOfflineOptions {
  std::string model;
  int threads = 0;
  std::string quantize = "none";
  std::string packed_cache_dir;
  std::string kv_dtype = "f32";
  std::string activations = "f32";
  std::vector<int> batches = {1, 4, 16};
  int prompt = 512;
  int depth = 0;  // tokens in the cache before decoding begins, beyond the prompt of one page
  int decode = 32;
  int rounds = 3;
  std::string json;
};

struct BenchOptions {
  BenchServeOptions serve;
  BenchOfflineOptions offline;
};

void add_bench_options(CLI::App& command, BenchOptions& options);
// The process's exit code: 0; 1 where the server failed or a request did; kExitBadInput.
int run_bench_serve(const BenchServeOptions& options);
int run_bench_offline(const BenchOfflineOptions& options);

}  // namespace millrace
