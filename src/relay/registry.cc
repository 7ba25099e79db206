#include "relay/registry.h"

#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "relay/instance_id.h"
#include "relay/local/local_relay.h"
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

// Device memory between GPUs of several processes: its road is reserved in choose_relay(), its backend is not written.
Result<std::unique_ptr<Relay>> no_nccl(const RelayOptions&) {
  return Status(StatusCode::kUnavailable, "this version has no NCCL relay yet");
}

// In the order in which they are listed; choose_relay() has an order of its own.
constexpr Backend kBackends[] = {
    {"local", make_local_relay},
    {"shm", make_shm_relay},
    {"tcp", make_tcp_relay},
    {"ucx", make_ucx_relay},
    {"nccl", no_nccl},
    {"nixl", [](const RelayOptions& options) { return make_plugin_relay("nixl", options); }},
    {"mooncake", [](const RelayOptions& options) { return make_plugin_relay("mooncake", options); }},
};

std::string all_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

bool has(const RelayPeer& peer, std::string_view name) {
  return std::find(peer.relays.begin(), peer.relays.end(), name) != peer.relays.end();
}

// "" where the road reaches; else why not.
std::string too_short(std::string_view name, const RelayPeer& from, const RelayPeer& to) {
  if (name == "local" && from.process != to.process) return "its ends are in two processes";
  if (name == "shm" && from.host != to.host) return "its ends are on two hosts";
  if (name == "nccl" && (!from.device || !to.device)) return "an end's tensors are not in device memory";
  if (name == "nccl" && from.process == to.process) return "its ends are in one process";
  return "";
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

const std::string& process_id() {
  static const std::string id = to_hex(make_instance_id());
  return id;
}

const std::string& host_id() {
  static const std::string id = [] {
    const uint64_t facts[] = {boot_hash(), namespace_inode("/proc/self/ns/pid"), namespace_inode("/proc/self/ns/net"),
                              namespace_inode("/proc/self/ns/ipc"), static_cast<uint64_t>(::geteuid())};
    // Without a boot id nothing tells two hosts apart.
    if (facts[0] == 0) return process_id();
    return fmt::format("{:016x}", XXH3_64bits(facts, sizeof(facts)));
  }();
  return id;
}

bool has_rdma() {
  std::error_code failed;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", failed);
  return !failed && devices != std::filesystem::directory_iterator();
}

RelayPeer this_peer(std::vector<std::string> relays) {
  return {.process = process_id(), .host = host_id(), .relays = std::move(relays), .rdma = has_rdma()};
}

Result<std::string> choose_relay(const RelayPeer& from, const RelayPeer& to, std::string_view wanted) {
  if (wanted != "auto") {
    const std::string why = too_short(wanted, from, to);
    if (!why.empty()) return error(StatusCode::kUnsupported, "the edge cannot take relay '{}': {}", wanted, why);
    for (const auto& [peer, end] : {std::pair{&from, "sender"}, std::pair{&to, "receiver"}}) {
      if (has(*peer, wanted)) continue;
      return error(StatusCode::kUnsupported, "the edge cannot take relay '{}': its {} has {}", wanted, end,
                   all_names(peer->relays));
    }
    return std::string(wanted);
  }
  for (const std::string_view name : {"local", "nccl", "shm", "ucx", "tcp"}) {
    if (!has(from, name) || !has(to, name) || !too_short(name, from, to).empty()) continue;
    if (name == "ucx" && !(from.rdma && to.rdma)) continue;
    return std::string(name);
  }
  return error(StatusCode::kUnsupported, "the edge has no relay in common: its sender has {}, its receiver {}",
               all_names(from.relays), all_names(to.relays));
}

}  // namespace millrace
