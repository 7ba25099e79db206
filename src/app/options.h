// The command line: one struct for each subcommand, and where its values come from. CLI11 is included by options.cc and
// main.cc alone. Thread safety: one thread, at the start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "media/video.h"
#include "stages/generating/model_options.h"

namespace CLI {
class App;
}

namespace millrace {

// The user of etcd, where it wants one: "USER:PASSWORD", or a file with that.
struct EtcdUserOptions {
  std::string user, file;
};

struct ServeOptions {
  ModelOptions model;
  std::string revision;                         // of a model of a hub; "": main
  std::vector<std::string> served_model_names;  // none: the directory's name
  bool any_model_name = false;
  bool require_model = false;  // a request without a model's name is refused
  bool public_models = false;
  bool web = true;              // a page at /
  int response_store_mib = 64;  // of answers of /v1/responses; 0: none is stored
  int response_store_ttl_s = 3600;
  std::string response_store_file;  // empty: they end with the process
  std::string host = "127.0.0.1";
  int port = 30000;
  std::string api_key;
  std::string admin_api_key;           // from the command line, or of the file
  std::string admin_api_key_file;      // keeps the key out of the process list
  bool admin_without_key = false;      // admin routes are open to every client
  std::string uds;                     // a Unix socket to listen on too
  bool tcp = true;                     // false: on the Unix socket alone
  bool request_log = true;             // a line for each request
  std::string otlp_endpoint;           // of a collector for spans of requests; "": from the environment
  double otlp_sample = 1;              // the share of requests without a caller's trace that have spans
  int parent = 0;                      // the process that started this server for itself; 0: a person did
  std::vector<std::string> if_of_use;  // names of options that are no error where the model has no use for them
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> media_domains;  // from which URLs of pictures and audio are fetched; none: from nowhere
  bool media_private_networks = false;
  std::string media_root;  // below which file: URLs are read; "": none are
  VideoLimits video;
  std::string pipeline;   // a YAML file; empty: text serving as it is built in
  std::string listen;     // where stages of other hosts join: instead of the pipeline's control
  std::string key_file;   // instead of the pipeline's own
  std::string discovery;  // "etcd://HOST:PORT/NAME": leads while no other server of that name does
  EtcdUserOptions etcd_user;
  std::string placement;  // "": as in the pipeline; "processes": the same; "single": all in this process
  int max_body_mib = 32;
  int request_timeout_s = 600;
  int sse_ping_s = 15;  // a silent stream gets a comment; 0: none
  int drain_timeout_s = 30;
  int dp = 0;       // schedulers; 0: as many as in the pipeline
  int prefill = 0;  // processes that compute prompts for the schedulers; 0: each computes its own
  int decode = 0;   // with prefill, another name of dp
  std::string kv_transfer_listen, kv_transfer_key_file;  // as in ModelOptions
  std::string dp_policy = "prefix_aware";
  int queue_timeout_s = 0;
  int stall_restart_s = 120;
  std::string profile_dir;  // empty: a folder of this user's under the system's temporary one
  // Of several models (router/router.h); `model.model` is the first, where a person named it without an option.
  std::vector<std::string> models;                        // of --model
  std::string models_dir;                                 // a folder with models in it
  std::string models_file;                                // of models with options of their own
  bool allow_pull = false;                                // clients may get models from a hub
  std::vector<std::string> model_aliases, pinned_models;  // "ALIAS=NAME"; names
  int model_ttl_s = 0;                                    // a model without requests for so long is unloaded; 0: never
  int models_max = 0;                                     // loaded at a time; 0: as many as the memory holds
  double models_memory_gib = 0;                           // for their weights; 0: what the system has
  std::vector<std::string> child_arguments;               // for the server of each model
  std::vector<std::string> given;                         // names of the options that a person gave, without the dashes
};

// A child process of `serve`, or one that a person started to join it: some stages of a pipeline, each on a thread.
struct StageOptions {
  std::string process;              // its name, for messages
  std::vector<std::string> stages;  // "scheduler:0", "detokenizer"
  std::string run_dir;
  uint64_t incarnation = 0;
  int parent = 0;    // the coordinator's process; 0: a person started this one
  int replicas = 0;  // schedulers of a text pipeline in all; 0: as in its file
  int prefill = 0;   // replicas that compute prompts for them; 0: the same
  ModelOptions model;
  // Of pipelines of any shape, and of text over several hosts.
  std::string pipeline;  // its file
  std::string join;      // the coordinator: its address, or an etcd:// name that has it
  std::string listen;    // this host's address, as others reach it
  std::string key_file;  // instead of the pipeline's own
  EtcdUserOptions etcd_user;
  std::string otlp_endpoint;  // as in ServeOptions
};

// A child process of a layer split: one range of the model's layers.
struct RangeOptions {
  std::string run_dir;  // of the chain's sockets
  int index = 0;        // from 0; the first range is its parent's
  int parent = 0;
  ModelOptions model;
};

struct ChatOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
  std::string system;
  double temperature = -1;            // negative: the server's default
  int max_tokens = 0;                 // 0: the server's default
  std::string model;                  // to ask for; "": the first that the server names
  std::optional<std::string> prompt;  // to answer, and nothing else
};

struct TopOptions {
  std::string url = "http://127.0.0.1:30000";
  std::string api_key;
  std::string model;  // of several; "": the only one that is loaded
  bool once = false;
};

struct PipelineOptions {
  std::string action;  // "check" or "draw"
  std::string file;
  std::string output = "pipeline.svg";  // "-": standard output
  std::string format;                   // "svg" or "dot"; empty: by the output's name
};

struct InspectOptions {
  std::string model;
  bool relays = false;  // the data plane's backends instead of a model
  bool tensors = false;
  // A layer split of the model. Absent: not given.
  std::optional<int> pp;
  std::optional<std::string> split, kv_dtype;
  std::optional<int64_t> kv_tokens;
};

void add_serve_options(CLI::App& command, ServeOptions& options);
void add_models_options(CLI::App& command, ServeOptions& options);  // a part of those
// What stood on the command line, in the environment or in a file, without the dashes.
std::vector<std::string> given_options(const CLI::App& command);
void add_stage_options(CLI::App& command, StageOptions& options);
void add_range_options(CLI::App& command, RangeOptions& options);
void add_chat_options(CLI::App& command, ChatOptions& options);
void add_top_options(CLI::App& command, TopOptions& options);
void add_pipeline_options(CLI::App& command, PipelineOptions& options);
void add_inspect_options(CLI::App& command, InspectOptions& options);

// The arguments with which `serve` starts a child: the inverse of add_stage_options.
std::vector<std::string> stage_arguments(const StageOptions& options);
// The same for a range of a layer split.
std::vector<std::string> range_arguments(const RangeOptions& options);

// The names of what every process that touches the model needs to know, without the dashes.
std::vector<std::string> model_option_names();
// Sets one of them as the command line does, with its checks. kInvalidArgument.
Status set_model_option(ModelOptions& options, const std::string& name, const std::string& text);

// Errors that only several values together show, and those of names. kInvalidArgument names the option.
Status validate(const ServeOptions& options);

// What the server was started with, as a JSON object for /server_info. No key is in it.
std::string options_json(const ServeOptions& options);

LogLevel log_level_of(const std::string& name);

}  // namespace millrace
