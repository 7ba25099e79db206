#include "app/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <type_traits>

#include "app/model_command_line.h"
#include "app/transfer_sockets.h"
#include "base/cpu_info.h"
#include "base/json.h"
#include "control/event_socket.h"
#include "stages/generating/loading.h"
#include "stages/replica_router.h"
#include "wire/prompt_media.h"

namespace millrace {
namespace {

// Prompts in processes of their own (docs/disaggregation.md).
void add_split_roles(CLI::App& command, ServeOptions& o) {
  const char* group = "Running";
  command
      .add_option("--prefill", o.prefill,
                  "Replicas on this host that compute long prompts for the schedulers, which take over the KV pages; "
                  "they share the threads and the KV memory (docs/disaggregation.md)")
      ->check(CLI::Range(1, kMaxReplicas))
      ->group(group);
  command
      .add_option(
          "--kv-transfer-listen", o.kv_transfer_listen,
          "ADDRESS:PORT where another server asks for the KV pages of prompts, and sends those of others, by the "
          "kv_transfer_params of a request; beyond loopback it takes a key")
      ->group(group);
  command
      .add_option("--kv-transfer-key-file", o.kv_transfer_key_file,
                  "Shared key of all servers that transfer KV pages, mode 0600: 64 hexadecimal digits")
      ->group(group);
  command.add_option("--decode", o.decode, "With --prefill: schedulers that generate; the same as --dp")
      ->check(CLI::Range(1, kMaxReplicas))
      ->group(group);
}

void add_etcd_user_options(CLI::App& command, EtcdUserOptions& o, const char* group) {
  CLI::Option* user =
      command
          .add_option("--discovery-user", o.user,
                      "USER:PASSWORD for an etcd that wants one; others see it in the process list, but "
                      "not MILLRACE_DISCOVERY_USER")
          ->group(group);
  command.add_option("--discovery-user-file", o.file, "File with USER:PASSWORD for etcd, mode 0600: one line")
      ->excludes(user)
      ->group(group);
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
      .add_option("--discovery", o.discovery,
                  "etcd://HOST:PORT/NAME: this server leads while no other one of that name does, else it stands by; "
                  "stages find it with --join of the same")
      ->group(group);
  add_etcd_user_options(command, o.etcd_user, group);
  command
      .add_option(
          "--placement", o.placement,
          "processes (default): stages in the processes that the pipeline defines; single: all as threads of one")
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
          "default: as many as in the pipeline")
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

// Who may call the admin routes (docs/api.md).
void add_admin_options(CLI::App& command, ServeOptions& o) {
  const char* group = "HTTP";
  command
      .add_option(
          "--uds", o.uds,
          "Unix socket to listen on too, for this user alone; where no key is set, admin routes need none there")
      ->group(group);
  command.add_flag("!--no-tcp", o.tcp, "Listen on the Unix socket alone")->needs("--uds")->group(group);
  command.add_option("--parent", o.parent)->group("");        // of `run` and the router; not for people
  command.add_option("--if-of-use", o.if_of_use)->group("");  // likewise
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

void add_media_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Pictures and audio";
  CLI::Option* domains = command
                             .add_option("--media-allowed-domains", o.media_domains,
                                         "Host whose http: and https: URLs are fetched, or *.HOST for those below it; "
                                         "may repeat; default: none")
                             ->group(group);
  command
      .add_flag("--media-allow-private-networks", o.media_private_networks,
                "Connect to addresses that are not public too: loopback, private, link-local")
      ->needs(domains)
      ->group(group);
  command.add_option("--media-root", o.media_root, "Folder below which file: URLs are read; default: none are")
      ->group(group);
  const auto limit = [&](const char* name, auto& value, const char* text, int64_t most) {
    command.add_option(name, value, text)->capture_default_str()->check(CLI::Range(int64_t{1}, most))->group(group);
  };
  limit("--video-max-frames", o.video.frames, "Frames of a video's file at most", 10'000'000);
  limit("--video-max-pixels", o.video.pixels, "Pixels of a video's frame at most", int64_t{64} << 20);
  limit("--video-max-seconds", o.video.seconds, "Seconds that a video plays at most", 86'400);
  limit("--video-max-mib", o.video.mib, "MiB of a video's file at most", int64_t{wire::kMaxMediaBytes >> 20});
  limit("--video-decode-seconds", o.video.decode_seconds, "Seconds for each of the two programs that read a video",
        600);
}

void add_trace_options(CLI::App& command, std::string& endpoint, const char* group) {
  command
      .add_option("--otlp-traces-endpoint", endpoint,
                  "Send a trace of each request to this OpenTelemetry collector (http://HOST:4318); default: "
                  "$OTEL_EXPORTER_OTLP_ENDPOINT, or none")
      ->group(group);
}

// Records of requests, and comments in streams that wait.
void add_record_options(CLI::App& command, ServeOptions& o) {
  const char* group = "HTTP";
  command.add_flag("!--no-request-log", o.request_log, "Do not log a line for each request (docs/cli.md)")
      ->group(group);
  add_trace_options(command, o.otlp_endpoint, group);
  command
      .add_option("--otlp-traces-sample", o.otlp_sample,
                  "The share of requests that are traced, of those without a traceparent")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--sse-ping-s", o.sse_ping_s,
          "Seconds of silence after which a stream of events gets a comment, against timeouts of proxies; 0: none")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& o) {
  add_model_options(command, o.model);
  add_models_options(command, o);
  command
      .add_option(
          "name", o.model.model,
          "The model, instead of --model: a path, or ORG/NAME[:QUANT] of a hub, which is pulled where the cache "
          "does not have it (docs/models.md)")
      ->excludes("--model");
  command.add_option("--revision", o.revision, "Branch, tag or commit of a model of a hub; default: main")
      ->group("Model and memory");
  const char* group = "HTTP";
  command.add_option("--host", o.host, "Address to listen on; 0.0.0.0 = every one")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port,-p", o.port, "Port to listen on; 0 = any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str()
      ->group(group);
  command.add_option("--api-key", o.api_key, "Key that clients must send as 'Authorization: Bearer KEY'")->group(group);
  add_admin_options(command, o);
  command
      .add_option("--cors-origin", o.cors_origins, "Origin of web pages that may call this server; may repeat; * = any")
      ->check([](const std::string& origin) {
        return origin == "*" || origin == "null" || origin.find("://") != std::string::npos
                   ? ""
                   : fmt::format("'{}' is no origin; wanted SCHEME://HOST[:PORT] or *", origin);
      })
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
  command
      .add_flag("--require-model", o.require_model,
                "Refuse requests without a model's name; without it they get the only model that there is")
      ->group(group);
  command.add_flag("--public-models", o.public_models, "Answer /v1/models without a key too")->group(group);
  command.add_flag("!--no-web", o.web, "Serve no web page at /, only the API")->group(group);
  command
      .add_option("--response-store-mib", o.response_store_mib,
                  "MiB of memory for answers of /v1/responses that clients may read again; 0: none is stored")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--response-store-ttl-s", o.response_store_ttl_s,
                  "How long such an answer is kept at most, in seconds")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--response-store-file", o.response_store_file,
                  "Keep these answers in this SQLite file too, so that they outlive the process; a new one is made")
      ->group(group);
  add_record_options(command, o);
  add_media_options(command, o);
  add_running_options(command, o);
  add_split_roles(command, o);
}

std::vector<std::string> given_options(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    if (option->count() > 0 && !names.empty() && names.front() != "config") out.push_back(names.front());
  }
  return out;
}

void add_stage_options(CLI::App& command, StageOptions& o) {
  const char* group = "Joining";
  command
      .add_option("--join", o.join,
                  "Coordinator to join: ADDRESS:PORT, as in the pipeline's `control`, or etcd://HOST:PORT/NAME, as "
                  "in the server's --discovery")
      ->group(group);
  command.add_option("--pipeline", o.pipeline, "The pipeline's YAML file, the same as the coordinator's")->group(group);
  command.add_option("--stages", o.stages, "Stages to run here: a,b; of one with replicas: a:0,a:1 or some of them")
      ->delimiter(',')
      ->group(group);
  command
      .add_option("--listen", o.listen,
                  "Address of this host that the others reach, without port; default: the coordinator's")
      ->group(group);
  command.add_option("--key-file", o.key_file, "Shared key, where it lies elsewhere than the pipeline has it")
      ->group(group);
  add_etcd_user_options(command, o.etcd_user, group);
  add_trace_options(command, o.otlp_endpoint, group);
  // What follows is of text stages: this host's own, the model apart, which must be the coordinator's.
  add_model_options(command, o.model);
  // What `serve` passes to its children; not for people.
  for (CLI::Option* option :
       {command.add_option("process", o.process), command.add_option("--run-dir", o.run_dir),
        command.add_option("--incarnation", o.incarnation), command.add_option("--parent", o.parent),
        command.add_option("--replicas", o.replicas), command.add_option("--prefill", o.prefill)}) {
    option->group("");
  }
}

namespace {

// Of a child that is one of several; not for people.
template <typename Options>
void add_child_options(CLI::App& command, Options& o) {
  add_model_options(command, o.model);
  command.add_option("--run-dir", o.run_dir);
  command.add_option("--index", o.index);
  command.add_option("--parent", o.parent);
}

template <typename Options>
std::vector<std::string> child_arguments(const char* command, const Options& o) {
  std::vector<std::string> out = {command};
  const auto add = [&out](const char* name, const auto& value) {
    out.push_back(name);
    out.push_back(fmt::format("{}", value));
  };
  add("--run-dir", o.run_dir);
  add("--index", o.index);
  add("--parent", o.parent);
  add_model_arguments(o.model, out);
  return out;
}

}  // namespace

void add_range_options(CLI::App& command, RangeOptions& o) { add_child_options(command, o); }

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
  add_if("otlp-traces-endpoint", o.otlp_endpoint);
  add("incarnation", o.incarnation);
  add("parent", o.parent);
  for (const std::string& stage : o.stages) add("stages", stage);
  add("replicas", o.replicas);
  add("prefill", o.prefill);
  add_model_arguments(o.model, out);
  return out;
}

std::vector<std::string> range_arguments(const RangeOptions& o) { return child_arguments("range", o); }

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
  add("revision", o.revision);
  add("host", o.host);
  add("port", o.port);
  add("max-body-mib", o.max_body_mib);
  add("tcp", o.tcp);
  add("request-log", o.request_log);
  add("sse-ping-s", o.sse_ping_s);
  add("otlp-traces-endpoint", o.otlp_endpoint);
  add("otlp-traces-sample", o.otlp_sample);
  add("web", o.web);
  add("response-store-mib", o.response_store_mib);
  add("response-store-ttl-s", o.response_store_ttl_s);
  add("response-store-file", o.response_store_file);
  add("media-allowed-domains", fmt::format("{}", fmt::join(o.media_domains, " ")));
  add("media-allow-private-networks", o.media_private_networks);
  add("media-root", o.media_root);
  add("video-max-frames", o.video.frames);
  add("video-max-pixels", o.video.pixels);
  add("video-max-seconds", o.video.seconds);
  add("video-max-mib", o.video.mib);
  add("video-decode-seconds", o.video.decode_seconds);
  add("pipeline", o.pipeline);
  add("listen", o.listen);
  add("discovery", o.discovery);
  add("placement", o.placement);
  add("request-timeout-s", o.request_timeout_s);
  add("queue-timeout-s", o.queue_timeout_s);
  add("drain-timeout-s", o.drain_timeout_s);
  add("stall-restart-s", o.stall_restart_s);
  add("dp", o.dp);
  add("dp-policy", o.dp_policy);
  add("prefill", o.prefill);
  add("kv-transfer-listen", o.kv_transfer_listen);
  return out + "}";
}

namespace {

Status check_transfer_listen(const ServeOptions& o) {
  if (o.kv_transfer_listen.empty()) {
    if (o.kv_transfer_key_file.empty()) return ok_status();
    return invalid_argument("--kv-transfer-key-file without --kv-transfer-listen; wanted both, or neither");
  }
  if (o.prefill > 0 || o.dp > 1 || o.model.pp > 1 || !o.model.prefix_cache) {
    return invalid_argument(
        "--kv-transfer-listen with --prefill, --dp, --pp or --no-prefix-cache; wanted one scheduler with all layers "
        "and a "
        "prefix cache");
  }
  RETURN_IF_ERROR(check_transfer_endpoint(o.kv_transfer_listen, o.kv_transfer_key_file));
  return ok_status();
}

}  // namespace

Status validate(const ServeOptions& o) {
  if (o.prefill > 0 && o.model.pp > 1) {
    return invalid_argument("--prefill is {} with --pp {}; wanted one of them: a layer split transfers no pages",
                            o.prefill, o.model.pp);
  }
  if (o.model.pp <= 1 && o.model.split != ModelOptions().split) {
    return invalid_argument("--split is {} without --pp; wanted both: --pp is the number of ranges", o.model.split);
  }
  RETURN_IF_ERROR(check_transfer_listen(o));
  if (o.prefill > 0 && !o.model.prefix_cache) {
    return invalid_argument("--prefill with --no-prefix-cache; wanted a prefix cache, to which pages come");
  }
  const int threads = o.model.threads > 0 ? o.model.threads : cpu_info().usable_cpus;
  if (o.dp > threads) {
    LOG_WARNING("--dp {} with {} compute threads: each scheduler gets one, and they share the processors", o.dp,
                threads);
  }
  if (o.model.kv_host_gib > 0 && !o.model.prefix_cache) {
    return invalid_argument("--kv-host-gib is {} with --no-prefix-cache; wanted a prefix cache, whose pages it keeps",
                            o.model.kv_host_gib);
  }
  if (!o.model.kv_disk_dir.empty() && !o.model.prefix_cache) {
    return invalid_argument("--kv-disk-dir with --no-prefix-cache; wanted a prefix cache, whose pages it keeps");
  }
  if (!o.model.kv_disk_dir.empty() && o.model.pp > 1) {
    return error(StatusCode::kUnsupported,
                 "--kv-disk-dir with --pp {}; wanted one of them: a range of layers keeps no KV", o.model.pp);
  }
  if (!o.model.kv_events.empty() && !o.model.prefix_cache) {
    return invalid_argument("--kv-events with --no-prefix-cache; wanted a prefix cache, whose pages they report");
  }
  if (!o.model.kv_events.empty()) {
    for (int i = 0; i < o.dp; ++i) {
      RETURN_IF_ERROR(check_event_endpoint(share_of(o.model, i, o.dp).kv_events, o.model.kv_events_anywhere));
    }
  }
  return Scheduler::validate(scheduler_options(o.model, {}));
}

LogLevel log_level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace millrace
