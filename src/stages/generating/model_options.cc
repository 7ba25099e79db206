#include "stages/generating/model_options.h"

#include <algorithm>

#include "base/cpu_info.h"
#include "control/event_socket.h"

namespace millrace {

ModelOptions share_of(const ModelOptions& options, int replica, int replicas) {
  ModelOptions out = options;
  if (replicas == 1) return out;
  const int threads = options.threads > 0 ? options.threads : cpu_info().usable_cpus;
  // The first ones get what does not divide.
  out.threads = std::max(1, threads / replicas + (replica < threads % replicas ? 1 : 0));
  out.kv_gib = options.kv_gib / replicas;
  out.kv_host_gib = options.kv_host_gib / replicas;
  out.replicas = replicas;
  if (!options.kv_events.empty()) out.kv_events = nth_endpoint(options.kv_events, replica);
  return out;
}

}  // namespace millrace
