// ModelOptions on a command line: of serve, of its children, and of the args of a stage. For app/ alone; CLI11 is
// included by .cc files.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "stages/generating/model_options.h"

namespace CLI {
class App;
}

namespace millrace {

void add_model_options(CLI::App& command, ModelOptions& options);
// The inverse: what add_model_options() reads back, behind what `out` has.
void add_model_arguments(const ModelOptions& model, std::vector<std::string>& out);

// Everything that a scheduler needs, by its name on the command line.
template <typename Visit>
void visit_model_options(const ModelOptions& m, Visit&& visit) {
  visit("model", m.model), visit("threads", m.threads), visit("page-size", m.page_size), visit("kv-gib", m.kv_gib);
  visit("pp", m.pp), visit("split", m.split);
  visit("quantize", m.quantize), visit("packed-cache-dir", m.packed_cache_dir), visit("kv-dtype", m.kv_dtype),
      visit("activations", m.activations), visit("context-length", m.context_length),
      visit("check-weights", m.check_weights), visit("weights-root", m.weights_root),
      visit("weights-snapshot-dir", m.weights_snapshot_dir), visit("start-weights", m.start_weights),
      visit("trainer-hosts", m.trainer_hosts);
  visit("max-running-requests", m.max_running_requests), visit("max-queued-requests", m.max_queued_requests);
  visit("chunked-prefill-tokens", m.chunked_prefill_tokens), visit("schedule-policy", m.schedule_policy);
  visit("priority-preemption-gap", m.priority_preemption_gap), visit("max-skips", m.max_skips);
  visit("schedule-conservativeness", m.schedule_conservativeness), visit("max-decode-gap-ms", m.max_decode_gap_ms);
  visit("overlap", m.overlap), visit("prefix-cache", m.prefix_cache), visit("eviction-policy", m.eviction_policy);
  visit("min-remote-tokens", m.min_remote_tokens);
  visit("kv-host-gib", m.kv_host_gib), visit("kv-host-write-policy", m.kv_host_write_policy);
  visit("kv-disk-dir", m.kv_disk_dir), visit("kv-disk-gib", m.kv_disk_gib);
  visit("tool-parser", m.tool_parser), visit("reasoning-parser", m.reasoning_parser), visit("speech", m.speech);
  visit("talker-threads", m.talker_threads), visit("vocoder-threads", m.vocoder_threads);
  visit("kv-events", m.kv_events), visit("kv-events-anywhere", m.kv_events_anywhere), visit("log-level", m.log_level);
}

}  // namespace millrace
