// ModelOptions: which model a generating stage runs, and how: set by the command line or the args of a stage.
//
// Thread safety: values; share_of() from any thread.
#pragma once

#include <string>

namespace millrace {

// What every process that touches the model needs to know.
struct ModelOptions {
  std::string model;     // a Hugging Face model directory
  std::string hub_name;  // "ORG/NAME", where it was found by that in args; not an option
  int threads = 0;       // compute threads; 0: all CPUs of this process
  int page_size = 16;
  int pp = 1;                     // processes over which the layers are split, on this host
  std::string split = "even";     // which layers go where: even, balanced, memory, or counts: 9,19
  double kv_gib = 0;              // memory for KV pages; 0: a quarter of what is available, no more than can be used
  int replicas = 1;               // processes or threads that divide what is available
  std::string quantize = "none";  // or "q8_0", "q4_0": of the weights, at load
  std::string packed_cache_dir;   // where packed weights are kept from one start to the next; empty: nowhere
  std::string kv_dtype = "f32";
  std::string activations = "f32";  // or "bf16": in products with bf16 weights
  double kv_host_gib = 0;           // memory for KV pages that were evicted; 0: none
  std::string kv_host_write_policy = "write_through";
  std::string kv_disk_dir;  // where prompts that are used again are kept from one start to the next; empty: nowhere
  double kv_disk_gib = 16;  // that all files there may have
  int context_length = 0;   // 0: the model's own
  int max_running_requests = 64;
  int max_queued_requests = 1024;
  int chunked_prefill_tokens = 512;
  std::string schedule_policy = "fcfs";
  int priority_preemption_gap = 10;
  int max_skips = 16;
  double schedule_conservativeness = 1.0;
  int max_decode_gap_ms = 0;
  std::string overlap = "on";
  bool prefix_cache = true;
  std::string eviction_policy = "lru";
  std::string kv_events;  // a ZeroMQ endpoint; empty: none are published
  bool kv_events_anywhere = false;
  bool check_weights = false;
  std::string weights_root;          // folders below it may be loaded while requests run; empty: the model's own alone
  std::string weights_snapshot_dir;  // where weights that a trainer sent are kept as model folders; empty: nowhere
  std::string start_weights = "newest";  // of weights_snapshot_dir, or "model", or the path of a snapshot there
  std::string trainer_hosts;  // to which a trainer's process group may connect, with commas; empty: loopback alone
  std::string tool_parser = "auto";       // of the output: auto, qwen, llama3, mistral, off
  std::string reasoning_parser = "auto";  // auto, qwen3, deepseek, off
  std::string speech = "auto";            // of answers: auto, where the model can; off
  int talker_threads = 0;                 // of the stage that speaks; 0: as `threads`
  int vocoder_threads = 0;                // of the one that makes its sound; 0: as `threads`
  std::string log_level = "info";
  std::string kv_transfer_listen;    // ADDRESS:PORT where other servers ask for KV pages; empty: none do
  std::string kv_transfer_key_file;  // of all these servers
  int min_remote_tokens = 128;       // fewer that the cache lacks are computed here, not by another server
};

// The share of one of several schedulers: threads and memory are divided, and each has its own endpoint for KV events.
ModelOptions share_of(const ModelOptions& options, int replica, int replicas);

}  // namespace millrace
