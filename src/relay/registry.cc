#include "relay/registry.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "relay/instance_id.h"
#include "relay/local/local_relay.h"
#include "relay/nccl/nccl_relay.h"
#include "relay/plugin/plugin_relay.h"
#include "relay/shm/shm_relay.h"
#include "relay/tcp/tcp_relay.h"
#include "relay/ucx/ucx_relay.h"

namespace millrace {
namespace {

constexpr std::size_t kProbePoolBytes = std::size_t{1} << 20;
constexpr int kProbeCredits = 1;

struct Backend {
  const char* name;
  Result<std::unique_ptr<Relay>> (*make)(const RelayOptions& options);
};

// In the order in which they are listed.
constexpr Backend kBackends[] = {
    {"local", make_local_relay},
    {"shm", make_shm_relay},
    {"tcp", make_tcp_relay},
    {"ucx", make_ucx_relay},
    {"nccl", make_nccl_relay},
    {"nixl", [](const RelayOptions& options) { return make_plugin_relay("nixl", options); }},
    {"mooncake", [](const RelayOptions& options) { return make_plugin_relay("mooncake", options); }},
};

std::string all_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

// The inode of a namespace of this process: equal for processes that share it.
uint64_t namespace_inode(const char* path) {
  struct stat info {};
  return ::stat(path, &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

}  // namespace

std::vector<std::string> relay_names() {
  std::vector<std::string> names;
  for (const Backend& backend : kBackends) names.emplace_back(backend.name);
  return names;
}

std::vector<RelayInfo> list_relays(const RelayOptions& options) {
  // A backend is available if one can be made. A small pool, as shared memory of the real size might not be free beside
  // the relays that run.
  RelayOptions probe = options;
  probe.pool_bytes = kProbePoolBytes;
  probe.credits = kProbeCredits;
  std::vector<RelayInfo> list;
  for (const Backend& backend : kBackends) {
    RelayInfo info;
    info.name = backend.name;
    if (Result<std::unique_ptr<Relay>> relay = backend.make(probe); relay.ok()) {
      info.available = true;
      info.capabilities = (*relay)->capabilities();
      (*relay)->close();
    } else {
      info.reason = relay.status().message();
    }
    list.push_back(std::move(info));
  }
  return list;
}

Result<std::unique_ptr<Relay>> make_relay(std::string_view name, const RelayOptions& options) {
  for (const Backend& backend : kBackends) {
    if (name == backend.name) return backend.make(options);
  }
  return invalid_argument("there is no relay '{}'; wanted one of {}", name, all_names(relay_names()));
}

const std::string& host_id() {
  static const std::string id = [] {
    // Two processes share memory only where all of these agree: abstract sockets belong to a network namespace, System
    // V memory to an IPC namespace, reads of another process's memory need its pid, and peers of another user are
    // refused.
    const uint64_t facts[] = {boot_hash(), namespace_inode("/proc/self/ns/pid"), namespace_inode("/proc/self/ns/net"),
                              namespace_inode("/proc/self/ns/ipc"), static_cast<uint64_t>(::geteuid())};
    // Without a boot id two hosts cannot be distinguished.
    if (facts[0] == 0) return to_hex(make_instance_id());
    return fmt::format("{:016x}", XXH3_64bits(facts, sizeof(facts)));
  }();
  return id;
}

}  // namespace millrace
