#include "app/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <type_traits>

#include "base/cpu_info.h"
#include "base/json.h"
#include "control/event_socket.h"
#include "stages/generating/loading.h"
#include "stages/replica_router.h"

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
                  "Which cached pages go first: lru, lfu, fifo, mru, filo, priority, slru")
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
      .add_option("--kv-events", o.kv_events,
                  "ZeroMQ endpoint on which cached and evicted pages are published for routers: tcp://127.0.0.1:5557, "
                  "ipc:///path; with --dp N the port or the path grows by one a scheduler")
      ->group(group);
  command
      .add_flag("--kv-events-anywhere", o.kv_events_anywhere,
                "Allow --kv-events on an address that other machines reach; events tell what the prompts hold")
      ->group(group);
}

void add_output_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option("--tool-parser", o.tool_parser,
                  "How tool calls are found in the output; auto: by the chat template (docs/tools.md)")
      ->check(CLI::IsMember({"auto", "qwen", "llama3", "mistral", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--reasoning-parser", o.reasoning_parser,
          "How reasoning is found in the output; auto: by the chat template; deepseek: the output begins inside it")
      ->check(CLI::IsMember({"auto", "qwen3", "deepseek", "off"}))
      ->capture_default_str()
      ->group(group);
}

void add_model_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option("--model,-m", o.model,
                  "Hugging Face model directory (config.json, *.safetensors, tokenizer.json), or a GGUF file")
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
      ->check(CLI::IsMember({"f32", "bf16", "f16", "int8"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--quantize", o.quantize,
                  "Quantize the weights while they are loaded: q8_0 (8.5 bits each) or q4_0 (4.5); none = as the file "
                  "holds them")
      ->check(CLI::IsMember({"none", "q8_0", "q4_0"}))
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
  command
      .add_option(
          "--weights-root", o.weights_root,
          "Folder below which /update_weights_from_disk may load weights; default: the model's own folder alone")
      ->group(group);
  command
      .add_option("--trainer-hosts", o.trainer_hosts,
                  "Hosts, with commas between them, to which /init_weights_update_group may connect; default: this one")
      ->group(group);
  add_output_options(command, o);
  add_scheduling_options(command, o);
  add_cache_options(command, o);
  command.add_option("--log-level", o.log_level, "What is written to stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
}

// Processes, deadlines, profiles and replicas.
void add_running_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Running";
  command
      .add_option("--pipeline", o.pipeline,
                  "A pipeline of stages in YAML; default: text serving, built in (pipelines/text.yaml)")
      ->group(group);
  command
      .add_option(
          "--listen", o.listen,
          "Where stages of other hosts join: ADDRESS:PORT, instead of the pipeline's `control`; beyond loopback "
          "it takes a key")
      ->group(group);
  command.add_option("--key-file", o.key_file, "Shared key of all hosts, instead of the pipeline's `key_file`")
      ->group(group);
  command
      .add_option("--placement", o.placement,
                  "processes (default): stages in the processes that the pipeline says; single: all as threads of one")
      ->check(CLI::IsMember({"processes", "single"}))
      ->group(group);
  command.add_option("--request-timeout-s", o.request_timeout_s, "Longest life of a request; then it gets a 504")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--queue-timeout-s", o.queue_timeout_s,
                  "Longest wait of a request for its first step; then it gets a 504; 0 = no limit but its own")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-timeout-s", o.drain_timeout_s,
                  "After Ctrl-C or SIGTERM, how long running requests may go on")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--stall-restart-s", o.stall_restart_s,
                  "A child process that makes no progress for so long is killed and started again; 0 = never")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--profile-dir", o.profile_dir,
                  "Folder for the traces of /start_profile; default: millrace-profiles-UID under the temporary folder")
      ->group(group);
  command
      .add_option(
          "--dp", o.dp,
          "Schedulers that share the requests (data parallel); each has a share of the threads and the KV memory; "
          "default: as many as the pipeline says")
      ->check(CLI::Range(1, kMaxReplicas))
      ->group(group);
  command
      .add_option("--dp-policy", o.dp_policy,
                  "Which scheduler gets a request: round_robin, least_requests, least_tokens, or prefix_aware (the one "
                  "that has most of the prompt cached, unless it is overloaded)")
      ->check(CLI::IsMember({"round_robin", "least_requests", "least_tokens", "prefix_aware"}))
      ->capture_default_str()
      ->group(group);
}

// Everything that a scheduler needs, by its name on the command line.
template <typename Visit>
void visit_model_options(const ModelOptions& m, Visit&& visit) {
  visit("model", m.model), visit("threads", m.threads), visit("page-size", m.page_size), visit("kv-gib", m.kv_gib);
  visit("quantize", m.quantize), visit("packed-cache-dir", m.packed_cache_dir), visit("kv-dtype", m.kv_dtype),
      visit("context-length", m.context_length), visit("check-weights", m.check_weights),
      visit("weights-root", m.weights_root), visit("trainer-hosts", m.trainer_hosts);
  visit("max-running-requests", m.max_running_requests), visit("max-queued-requests", m.max_queued_requests);
  visit("chunked-prefill-tokens", m.chunked_prefill_tokens), visit("schedule-policy", m.schedule_policy);
  visit("priority-preemption-gap", m.priority_preemption_gap), visit("max-skips", m.max_skips);
  visit("schedule-conservativeness", m.schedule_conservativeness), visit("max-decode-gap-ms", m.max_decode_gap_ms);
  visit("overlap", m.overlap), visit("prefix-cache", m.prefix_cache), visit("eviction-policy", m.eviction_policy);
  visit("kv-host-gib", m.kv_host_gib), visit("kv-host-write-policy", m.kv_host_write_policy);
  visit("tool-parser", m.tool_parser), visit("reasoning-parser", m.reasoning_parser);
  visit("kv-events", m.kv_events), visit("kv-events-anywhere", m.kv_events_anywhere), visit("log-level", m.log_level);
}

// Who may call the admin routes (docs/api.md).
void add_admin_options(CLI::App& command, ServeOptions& o) {
  const char* group = "HTTP";
  command
      .add_option("--uds", o.uds, "Unix socket to listen on too, for this user alone; admin routes need no key there")
      ->group(group);
  CLI::Option* key =
      command
          .add_option("--admin-api-key", o.admin_api_key, "Key of the admin routes; others see it in the process list")
          ->group(group);
  CLI::Option* file = command
                          .add_option("--admin-api-key-file", o.admin_api_key_file,
                                      "File with the key of the admin routes, mode 0600: one line")
                          ->excludes(key)
                          ->group(group);
  command
      .add_flag("--admin-without-key", o.admin_without_key,
                "Answer the admin routes to every client; default: without a key, on the Unix socket only")
      ->excludes(key)
      ->excludes(file)
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& o) {
  add_model_options(command, o.model);
  const char* group = "HTTP";
  command.add_option("--host", o.host, "Address to listen on; 0.0.0.0 = every one")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port,-p", o.port, "Port to listen on; 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  command.add_option("--api-key", o.api_key, "Key that clients must send as 'Authorization: Bearer KEY'")
      ->envname("MILLRACE_API_KEY")
      ->group(group);
  add_admin_options(command, o);
  command
      .add_option("--cors-origin", o.cors_origins, "Origin of web pages that may call this server; may repeat; * = any")
      ->group(group);
  command
      .add_option("--allowed-host", o.allowed_hosts, "Further Host names accepted on a loopback address; may repeat")
      ->group(group);
  command.add_option("--max-body-mib", o.max_body_mib, "Largest request body in MiB; larger ones get a 413")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--served-model-name", o.served_model_names,
                  "The model's name for clients; default: its directory's; may repeat: further names")
      ->check([](const std::string& name) { return name.empty() ? "the name is empty" : ""; })
      ->group(group);
  command.add_flag("--any-model-name", o.any_model_name, "Serve requests whatever model they name")->group(group);
  command.add_flag("--public-models", o.public_models, "Answer /v1/models without a key too")->group(group);
  add_running_options(command, o);
}

std::vector<std::string> given_options(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    if (option->count() > 0 && !names.empty()) out.push_back(names.front());
  }
  return out;
}

void add_stage_options(CLI::App& command, StageOptions& o) {
  const char* group = "Joining";
  command.add_option("--join", o.join, "Leader to join, as the pipeline's `control` says it: ADDRESS:PORT")
      ->group(group);
  command.add_option("--pipeline", o.pipeline, "The pipeline's YAML file, the same as the leader's")->group(group);
  command
      .add_option("--stages,--seat", o.stages, "Stages to run here: a,b; of one with replicas: a:0,a:1 or some of them")
      ->delimiter(',')
      ->group(group);
  command
      .add_option("--listen", o.listen,
                  "Address of this host that the others reach, without port; default: the leader's")
      ->group(group);
  command.add_option("--key-file", o.key_file, "Shared key, where it lies elsewhere than the pipeline says")
      ->group(group);
  // What follows is of text stages: this host's own, the model apart, which must be the leader's.
  add_model_options(command, o.model);
  // What `serve` says to its children; not for people.
  for (CLI::Option* option : {command.add_option("process", o.process), command.add_option("--run-dir", o.run_dir),
                              command.add_option("--incarnation", o.incarnation),
                              command.add_option("--parent", o.parent), command.add_option("--replicas", o.replicas)}) {
    option->group("");
  }
}

std::vector<std::string> stage_arguments(const StageOptions& o) {
  std::vector<std::string> out = {"stage", o.process};
  const auto add = [&out](const char* name, const auto& value) {
    out.push_back(fmt::format("--{}", name));
    out.push_back(fmt::format("{}", value));
  };
  const auto add_if = [&add](const char* name, const std::string& value) {
    if (!value.empty()) add(name, value);
  };
  add_if("run-dir", o.run_dir);
  add_if("pipeline", o.pipeline);
  add_if("join", o.join);
  add_if("listen", o.listen);
  add_if("key-file", o.key_file);
  add("incarnation", o.incarnation);
  add("parent", o.parent);
  for (const std::string& seat : o.stages) add("seat", seat);
  add("replicas", o.replicas);
  visit_model_options(o.model, [&](const char* name, const auto& value) {
    if constexpr (std::is_same_v<decltype(value), const bool&>) {
      if (value) out.push_back(fmt::format("--{}", name));
    } else if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      if (!value.empty()) add(name, value);
    } else {
      add(name, value);
    }
  });
  if (!o.model.prefix_cache) out.push_back("--no-prefix-cache");
  return out;
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

std::string options_json(const ServeOptions& o) {
  std::string out = "{";
  const auto add = [&out](const char* name, const auto& value) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":", out.size() > 1 ? "," : "", name);
    if constexpr (std::is_same_v<decltype(value), const std::string&>) {
      json_append_string(out, value);
    } else {
      fmt::format_to(std::back_inserter(out), "{}", value);
    }
  };
  visit_model_options(o.model, add);
  add("host", o.host);
  add("port", o.port);
  add("max-body-mib", o.max_body_mib);
  add("pipeline", o.pipeline);
  add("listen", o.listen);
  add("placement", o.placement);
  add("request-timeout-s", o.request_timeout_s);
  add("queue-timeout-s", o.queue_timeout_s);
  add("drain-timeout-s", o.drain_timeout_s);
  add("stall-restart-s", o.stall_restart_s);
  add("dp", o.dp);
  add("dp-policy", o.dp_policy);
  return out + "}";
}

Status validate(const ServeOptions& o) {
  const int threads = o.model.threads > 0 ? o.model.threads : cpu_info().usable_cpus;
  if (o.dp > threads) {
    LOG_WARNING("--dp {} with {} compute threads: each scheduler gets one, and they share the processors", o.dp,
                threads);
  }
  if (o.model.kv_host_gib > 0 && !o.model.prefix_cache) {
    return invalid_argument("--kv-host-gib is {} with --no-prefix-cache; wanted a prefix cache, whose pages it keeps",
                            o.model.kv_host_gib);
  }
  if (!o.model.kv_events.empty() && !o.model.prefix_cache) {
    return invalid_argument("--kv-events with --no-prefix-cache; wanted a prefix cache, of which they tell");
  }
  if (!o.model.kv_events.empty()) {
    for (int i = 0; i < o.dp; ++i) {
      RETURN_IF_ERROR(check_event_endpoint(share_of(o.model, i, o.dp).kv_events, o.model.kv_events_anywhere));
    }
  }
  return Scheduler::validate(scheduler_options(o.model, {}));
}

void add_chat_options(CLI::App& command, ChatOptions& o) {
  command.add_option("--url,-u", o.url, "Server to talk to")->capture_default_str();
  command.add_option("--api-key", o.api_key, "Key of the server")->envname("MILLRACE_API_KEY");
  command.add_option("--system,-s", o.system, "System message to begin with");
  command.add_option("--temperature,-t", o.temperature, "0 = always the likeliest word; default: the server's")
      ->check(CLI::Range(0.0, 2.0));
  command.add_option("--max-tokens,-n", o.max_tokens, "Longest answer; default: what the context holds")
      ->check(CLI::Range(1, 1 << 26));
}

void add_pipeline_options(CLI::App& command, PipelineOptions& o) {
  command.add_option("action", o.action, "check: say what is wrong with it, or what it is; draw: make its picture")
      ->required()
      ->check(CLI::IsMember({"check", "draw"}));
  command.add_option("file", o.file, "The pipeline's YAML file")->required();
  command.add_option("--output,-o", o.output, "Where the picture goes; - = standard output")->capture_default_str();
  command.add_option("--format,-f", o.format, "svg or dot (for Graphviz); default: as the output is named")
      ->check(CLI::IsMember({"svg", "dot"}));
}

void add_inspect_options(CLI::App& command, InspectOptions& o) {
  auto* model = command.add_option("model", o.model, "Hugging Face model directory, or a GGUF file");
  command.add_flag("--tensors", o.tensors, "List every tensor too");
  command
      .add_flag("--relays", o.relays, "Say instead which roads for tensors this machine has, and why others are absent")
      ->excludes(model);
}

LogLevel log_level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace millrace
