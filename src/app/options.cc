#include "app/options.h"

#include <CLI/CLI.hpp>

namespace millrace {
namespace {

void add_model_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model and memory";
  command
      .add_option("--model,-m", o.model, "Hugging Face model directory (config.json, *.safetensors, tokenizer.json)")
      ->required()
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
  command.add_option("--context-length", o.context_length, "Longest sequence served; 0 = the model's own")
      ->check(CLI::Range(0, 1 << 26))
      ->capture_default_str()
      ->group(group);
  command.add_flag("--check-weights", o.check_weights, "Refuse weights that hold NaN or infinity")->group(group);

  group = "Scheduling";
  command.add_option("--max-running-requests", o.max_running_requests, "Requests computed together at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-queued-requests", o.max_queued_requests, "Requests waiting at most; more get a 429")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  command.add_option("--chunked-prefill-tokens", o.chunked_prefill_tokens, "Token rows computed in one step at most")
      ->check(CLI::Range(16, 65536))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--prefix-cache,!--no-prefix-cache", o.prefix_cache, "Share KV pages of common prefixes (default on)")
      ->group(group);
  command.add_option("--log-level", o.log_level, "What is written to stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
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
      .add_option("--served-model-name", o.served_model_name, "The model's name for clients; default: its directory's")
      ->group(group);
  group = "Running";
  command.add_option("--placement", o.placement, "Stages as supervised child processes, or as threads of a single one")
      ->check(CLI::IsMember({"processes", "single"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--request-timeout-s", o.request_timeout_s, "Longest life of a request; then it gets a 504")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-timeout-s", o.drain_timeout_s,
                  "After Ctrl-C or SIGTERM, how long running requests may go on")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str()
      ->group(group);
}

void add_stage_options(CLI::App& command, StageOptions& o) {
  command.add_option("stage", o.stage)->required()->check(CLI::IsMember({"scheduler", "detokenizer"}));
  command.add_option("--run-dir", o.run_dir)->required();
  command.add_option("--incarnation", o.incarnation)->required();
  command.add_option("--parent", o.parent)->required();
  command.add_option("--eos-token-ids", o.eos_token_ids)->delimiter(',');
  add_model_options(command, o.model);
}

std::vector<std::string> stage_arguments(const StageOptions& o) {
  const ModelOptions& m = o.model;
  std::vector<std::string> out = {"stage", o.stage};
  const auto add = [&out](const char* name, const auto& value) {
    out.push_back(name);
    out.push_back(fmt::format("{}", value));
  };
  add("--run-dir", o.run_dir);
  add("--incarnation", o.incarnation);
  add("--parent", o.parent);
  for (int32_t id : o.eos_token_ids) add("--eos-token-ids", id);
  add("--model", m.model);
  add("--threads", m.threads);
  add("--page-size", m.page_size);
  add("--kv-gib", m.kv_gib);
  add("--context-length", m.context_length);
  add("--max-running-requests", m.max_running_requests);
  add("--max-queued-requests", m.max_queued_requests);
  add("--chunked-prefill-tokens", m.chunked_prefill_tokens);
  add("--log-level", m.log_level);
  if (!m.prefix_cache) out.push_back("--no-prefix-cache");
  if (m.check_weights) out.push_back("--check-weights");
  return out;
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

void add_inspect_options(CLI::App& command, InspectOptions& o) {
  command.add_option("model", o.model, "Hugging Face model directory")->required();
  command.add_flag("--tensors", o.tensors, "List every tensor too");
}

LogLevel log_level_of(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return LogLevel::kInfo;
}

}  // namespace millrace
