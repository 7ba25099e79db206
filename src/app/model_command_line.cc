#include "app/model_command_line.h"

#include <CLI/CLI.hpp>
#include <type_traits>

#include "app/options.h"
#include "scheduler/options.h"
#include "wire/limits.h"

namespace millrace {
namespace {

void add_scheduling_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Scheduling";
  command.add_option("--max-running-requests", o.max_running_requests, "Requests computed together at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-queued-requests", o.max_queued_requests,
                  "Requests waiting at most, beyond those that may run; more get a 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--chunked-prefill-tokens", o.chunked_prefill_tokens, "Token rows computed in one step at most")
      ->check(CLI::Range(16, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--schedule-policy", o.schedule_policy,
                  "Who is admitted first: fcfs (by arrival), lpm (longest prefix in the cache), dfs-weight (by shared "
                  "prefixes), lof (longest output), random, priority (the request's own)")
      ->check(CLI::IsMember({"fcfs", "lpm", "dfs-weight", "lof", "random", "priority"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--priority-preemption-gap", o.priority_preemption_gap,
                  "With priority: a waiting request may push out running ones whose priority is smaller by more")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-skips", o.max_skips,
                  "How many later requests may be admitted before one that does not fit yet")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--schedule-conservativeness", o.schedule_conservativeness,
          "How much KV memory is kept for texts to grow: 0 = none, admit what fits now and retract when it does "
          "not any more; larger = more")
      ->check(CLI::Range(0.0, kMaxConservativeness))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-decode-gap-ms", o.max_decode_gap_ms,
                  "While texts are generated, prefills are cut so that a step takes no longer; 0 = no such target")
      ->check(CLI::Range(0, 600'000))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--min-remote-tokens", o.min_remote_tokens,
          "Where other processes compute prompts: one of which the prefix cache lacks fewer tokens is computed by "
          "its scheduler (docs/disaggregation.md)")
      ->check(CLI::Range(1, 1 << 26))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--overlap", o.overlap,
                  "Plan the next batch while one is computed: on or off; the texts are the same")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
}

void add_cache_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Prefix cache";
  command
      .add_flag("--prefix-cache,!--no-prefix-cache", o.prefix_cache, "Share KV pages of common prefixes (default on)")
      ->group(group);
  command
      .add_option("--eviction-policy", o.eviction_policy,
                  "Which cached pages go first: lru, used longest ago; lfu, by the fewest requests; fifo, cached "
                  "first; mru, used last; filo, cached last; priority, of the lowest; slru, used by one request alone")
      ->check(CLI::IsMember({"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-host-gib", o.kv_host_gib,
                  "Memory in GiB for a second pool of KV pages, which keeps what is evicted from the first; 0 = none")
      ->check(CLI::Range(0.0, 65536.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--kv-host-write-policy", o.kv_host_write_policy,
          "When a page is copied there: write_through (when it is cached), write_through_selective (at its second "
          "use), write_back (when it is evicted)")
      ->check(CLI::IsMember({"write_through", "write_through_selective", "write_back"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-disk-dir", o.kv_disk_dir,
                  "Folder where the KV of prompts that are used again is kept, so that a restart finds it")
      ->group(group);
  command.add_option("--kv-disk-gib", o.kv_disk_gib, "GiB that its files may have; the oldest are removed")
      ->check(CLI::Range(0.001, 1048576.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-events", o.kv_events,
                  "ZeroMQ endpoint on which cached and evicted pages are published for routers: tcp://127.0.0.1:5557, "
                  "ipc:///path; with --dp N the port or the path grows by one a scheduler")
      ->group(group);
  command
      .add_flag("--kv-events-anywhere", o.kv_events_anywhere,
                "Allow --kv-events on an address that other machines reach; events reveal what the prompts hold")
      ->group(group);
}

void add_output_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option("--tool-parser", o.tool_parser,
                  "How tool calls are found in the output; auto: by the chat template (docs/tools.md)")
      ->check(CLI::IsMember({"auto", "qwen", "qwen-xml", "llama3", "mistral", "deepseek", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--reasoning-parser", o.reasoning_parser,
          "How reasoning is found in the output; auto: by the chat template; deepseek: the output begins inside it")
      ->check(CLI::IsMember({"auto", "qwen3", "deepseek", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--speech", o.speech,
                  "Speak answers where a request asks for it and the model can; off: its talker and vocoder are not "
                  "loaded (docs/omni.md)")
      ->check(CLI::IsMember({"auto", "off"}))
      ->capture_default_str()
      ->group(group);
  const auto add_threads = [&](const char* name, int& threads, const char* help) {
    command.add_option(name, threads, help)->check(CLI::Range(0, 256))->capture_default_str()->group(group);
  };
  add_threads("--talker-threads", o.talker_threads,
              "Compute threads of the stage that speaks an answer; 0 = as --threads");
  add_threads("--vocoder-threads", o.vocoder_threads,
              "Compute threads of the stage that makes its sound; 0 = as --threads");
}

void add_split_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option("--pp", o.pp,
                  "Split the model's layers over so many processes of this host, which share the threads (pipeline "
                  "parallel); the texts are the same (docs/layers.md)")
      ->check(CLI::Range(1, static_cast<int>(wire::kMaxRanges)))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--split", o.split,
          "With --pp: which layers go where: even, balanced (bytes that a decode step reads), memory (bytes held), or "
          "how many each range gets: 9,19")
      ->capture_default_str()
      ->group(group);
}

void add_weight_update_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option(
          "--weights-root", o.weights_root,
          "Folder below which /update_weights_from_disk may load weights; default: the model's own folder alone")
      ->group(group);
  command
      .add_option(
          "--weights-snapshot-dir", o.weights_snapshot_dir,
          "Folder where weights that a trainer sent are kept as model folders, so that a server or a replica that is "
          "started again finds them; default: nowhere")
      ->group(group);
  command
      .add_option(
          "--start-weights", o.start_weights,
          "With --weights-snapshot-dir: start with the newest complete snapshot of this model there, where there "
          "is one, or with the model's own weights (model), or with the snapshot of this path")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--trainer-hosts", o.trainer_hosts,
                  "Hosts, with commas between them, to which /init_weights_update_group may connect; default: this one")
      ->group(group);
}

}  // namespace

void add_model_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option(
          "--model,-m", o.model,
          "Hugging Face model directory (config.json, *.safetensors, tokenizer.json), a GGUF file, or ORG/NAME[:QUANT] "
          "of a hub: serve and run pull what the cache lacks")
      ->group(group);
  command.add_option("--threads", o.threads, "Compute threads; 0 = all CPUs of this process")
      ->check(CLI::Range(0, 256))
      ->capture_default_str()
      ->group(group);
  command.add_option("--page-size", o.page_size, "Tokens in one KV page")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-gib", o.kv_gib,
                  "Memory for KV pages in GiB; 0 = as much as is useful, a quarter of the free memory at most")
      ->check(CLI::Range(0.0, 65536.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--kv-dtype", o.kv_dtype,
          "How keys and values are stored: f32 (exact), bf16 or f16 (half the memory), int8 (a quarter, one scale "
          "per token and head)")
      ->transform(CLI::IsMember({"f32", "bf16", "f16", "int8"}, CLI::ignore_case))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--activations", o.activations,
          "What products with bf16 weights multiply: f32, or bf16, twice as fast on processors with AVX512_BF16 "
          "and three times with AMX, for a rounding of the size of the weights' own")
      ->transform(CLI::IsMember({"f32", "bf16"}, CLI::ignore_case))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--quantize", o.quantize,
                  "Quantize the weights while they are loaded: q8_0 (8.5 bits each) or q4_0 (4.5); none = as the file "
                  "holds them")
      ->transform(CLI::IsMember({"none", "q8_0", "q4_0"}, CLI::ignore_case))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--packed-cache-dir", o.packed_cache_dir,
          "Folder where the weights are kept as this processor reads them, so that the next start neither packs "
          "nor quantizes them again; default: nowhere")
      ->group(group);
  command.add_option("--context-length", o.context_length, "Longest sequence served; 0 = the model's own")
      ->check(CLI::Range(0, 1 << 26))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--check-weights", o.check_weights, "Refuse weights that hold NaN or infinity")->group(group);
  add_weight_update_options(command, o);
  add_split_options(command, o);
  add_output_options(command, o);
  add_scheduling_options(command, o);
  add_cache_options(command, o);
  command.add_option("--log-level", o.log_level, "What is written to stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  // What `serve` gives its children; not for people.
  command.add_option("--kv-listen", o.kv_transfer_listen)->group("");
  command.add_option("--kv-key-file", o.kv_transfer_key_file)->group("");
}

void add_model_arguments(const ModelOptions& model, std::vector<std::string>& out) {
  visit_model_options(model, [&out](const char* name, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const bool&>) {
      if (value) out.push_back(fmt::format("--{}", name));
      return;
    } else if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      if (value.empty()) return;
    }
    out.push_back(fmt::format("--{}", name));
    out.push_back(fmt::format("{}", value));
  });
  if (!model.prefix_cache) out.push_back("--no-prefix-cache");
  const auto add = [&out](const char* name, const auto& value) {
    out.push_back(name);
    out.push_back(fmt::format("{}", value));
  };
  if (!model.kv_transfer_listen.empty()) add("--kv-listen", model.kv_transfer_listen);
  if (!model.kv_transfer_key_file.empty()) add("--kv-key-file", model.kv_transfer_key_file);
}

std::vector<std::string> model_option_names() {
  std::vector<std::string> names;
  visit_model_options(ModelOptions(), [&names](const char* name, const auto&) { names.emplace_back(name); });
  return names;
}

Status set_model_option(ModelOptions& options, const std::string& name, const std::string& text) {
  CLI::App command;
  add_model_options(command, options);
  const std::string what = "--" + name;
  try {
    command.parse(std::vector<std::string>{what + "=" + text});
  } catch (const CLI::ParseError& failure) {
    std::string why = failure.what();
    if (why.starts_with(what + ": ")) why.erase(0, what.size() + 2);
    return invalid_argument("it is '{}': {}", text.substr(0, 64), why);
  }
  return ok_status();
}

}  // namespace millrace
