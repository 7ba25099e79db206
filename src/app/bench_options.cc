#include <CLI/CLI.hpp>

#include "app/bench.h"

namespace millrace {
namespace {

void add_serve(CLI::App& command, BenchServeOptions& o) {
  command.add_option("--url,-u", o.url, "Server to load")->capture_default_str();
  command.add_option("--api-key", o.generator.api_key, "Key of the server");
  command.add_option("--model-name", o.generator.model, "Model to ask for; default: the first that the server names");
  command
      .add_option(
          "--workload,-w", o.kind,
          "random: prompts with nothing in common; shared-prefix: groups of prompts that begin alike; trace: a file's")
      ->check(CLI::IsMember({"random", "shared-prefix", "trace"}))
      ->capture_default_str();
  command.add_option("--endpoint", o.endpoint, "completions, or chat (prompts are words then)")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  command
      .add_option("--clients,-c", o.generator.clients,
                  "Closed loop: clients that ask again when they are answered. Open loop: most requests at a time")
      ->check(CLI::Range(1, load::kMaxClients))
      ->capture_default_str();
  command
      .add_option("--rate,-r", o.workload.rate,
                  "Open loop: requests a second, arriving at random; default: closed loop")
      ->check(CLI::NonNegativeNumber);
  command.add_option("--requests,-n", o.workload.requests, "Requests in all")->capture_default_str();
  command.add_option("--prompt-tokens,-i", o.workload.prompt_tokens, "Of each prompt, beside a shared prefix")
      ->capture_default_str();
  command.add_option("--tokens,-o", o.workload.answer_tokens, "Of each answer")->capture_default_str();
  command.add_option("--groups", o.workload.groups, "shared-prefix: different prefixes")->capture_default_str();
  command.add_option("--prefix-tokens", o.workload.prefix_tokens, "shared-prefix: tokens of a prefix")
      ->capture_default_str();
  command.add_option("--vocabulary", o.workload.vocabulary, "Prompts hold token ids from 10 up to this")
      ->capture_default_str();
  command.add_flag("--text", o.workload.text, "Prompts of words instead of token ids, for servers that take no ids");
  command.add_option("--trace", o.workload.trace,
                     "trace: JSON lines with timestamp (ms), input_length, output_length, hash_ids; or prompt");
  command.add_option("--trace-speed", o.workload.trace_speed, "trace: 2 = twice as fast as its timestamps")
      ->capture_default_str();
  command.add_option("--warmup", o.warmup, "Requests before those that count")
      ->check(CLI::Range(int64_t{0}, load::kMaxRequests))
      ->capture_default_str();
  command.add_option("--seed", o.workload.seed, "The same seed makes the same requests")->capture_default_str();
  command.add_option("--timeout-s", o.timeout_s, "Longest time of one request")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  command.add_flag("!--stop-at-eos", o.generator.ignore_eos, "Let answers end where the model ends them");
  command.add_option("--json,-j", o.json, "Write the figures and every request to this file; - = standard output");
  command.add_option("--plot,-p", o.plot, "Draw the distributions into this file, whose name ends with .svg");
}

void add_offline(CLI::App& command, BenchOfflineOptions& o) {
  command.add_option("model", o.model, "Model directory or GGUF file")->required();
  command.add_option("--threads,-t", o.threads, "Compute threads; 0 = all processors")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--quantize", o.quantize, "Quantize the weights at load: q8_0 or q4_0")
      ->transform(CLI::IsMember({"none", "q8_0", "q4_0"}, CLI::ignore_case));
  command.add_option("--packed-cache-dir", o.packed_cache_dir,
                     "Folder where packed weights are kept from one start to the next, as with serve");
  command.add_option("--kv-dtype", o.kv_dtype, "How keys and values are stored: f32, bf16, f16, int8")
      ->transform(CLI::IsMember({"f32", "bf16", "f16", "int8"}, CLI::ignore_case))
      ->capture_default_str();
  command.add_option("--activations", o.activations, "What products with bf16 weights multiply: f32 or bf16")
      ->transform(CLI::IsMember({"f32", "bf16"}, CLI::ignore_case))
      ->capture_default_str();
  command.add_option("--batch,-b", o.batches, "Sequences that decode together, one measurement each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--prompt,-i", o.prompt, "Tokens of the prefill that is timed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--depth,-d", o.depth, "Tokens in the cache before decoding begins")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command.add_option("--decode,-o", o.decode, "Decode steps that are timed")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--rounds", o.rounds, "How many rounds; the median is reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_option("--json,-j", o.json, "Write the figures to this file; - = standard output");
}

}  // namespace

void add_bench_options(CLI::App& command, BenchOptions& options) {
  command.require_subcommand(1);
  add_serve(*command.add_subcommand("serve", "Send requests to a server with an OpenAI-compatible API"), options.serve);
  add_offline(*command.add_subcommand("offline", "Time a model's steps and kernels, without a server"),
              options.offline);
}

}  // namespace millrace
