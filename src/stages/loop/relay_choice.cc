#include "stages/loop/relay_choice.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace millrace::loop {
namespace {

constexpr std::array<std::string_view, 8> kRelayPreference = {"local",    "shm",  "ucx", "nixl",
                                                              "mooncake", "nccl", "tcp", "sim"};

bool spans(const RelayCapabilities& can, Distance distance) {
  switch (distance) {
    case Distance::kProcess:
      return can.same_process;
    case Distance::kHost:
      return can.same_host;
    case Distance::kHosts:
      return can.across_hosts;
  }
  return false;
}

// What the parts of one payload are in.
struct Memory {
  bool host = false;
  bool cuda = false;

  bool carried_by(const RelayCapabilities& can) const {
    return (!host || can.host_memory) && (!cuda || can.cuda_memory);
  }
  const char* name() const { return host && cuda ? "host and CUDA" : cuda ? "CUDA" : "host"; }
  const char* capabilities() const {
    return host && cuda ? "host_memory and cuda_memory" : cuda ? "cuda_memory" : "host_memory";
  }
};

Memory memory_of(std::span<const SharedBytes> parts) {
  Memory out;
  for (const SharedBytes& part : parts) (part.device() == Device::kCuda ? out.cuda : out.host) = true;
  return out;
}

// The smaller, the better.
int rank(const RelayCapabilities& can, const std::string& name) {
  const int copies = can.by_reference ? 0 : can.mapped_receive ? 1 : 2;
  const auto position = std::find(kRelayPreference.begin(), kRelayPreference.end(), name);
  return copies * static_cast<int>(kRelayPreference.size() + 1) + static_cast<int>(position - kRelayPreference.begin());
}

const wire::RelayAddress* find(const wire::Peer& peer, const std::string& relay) {
  for (const wire::RelayAddress& address : peer.relays) {
    if (address.relay == relay) return &address;
  }
  return nullptr;
}

std::string names(const wire::Peer& peer) {
  std::string text;
  for (const wire::RelayAddress& address : peer.relays) text += (text.empty() ? "" : ", ") + address.relay;
  return text.empty() ? "none" : text;
}

}  // namespace

Distance distance(const wire::Peer& a, const wire::Peer& b) {
  if (a.host != b.host || a.boot != b.boot) return Distance::kHosts;
  return a.pid == b.pid ? Distance::kProcess : Distance::kHost;
}

Result<ChosenRelay> choose_relay(const wire::Peer& from, const wire::Peer& to, const Relays& relays,
                                 const std::string& wanted, std::span<const SharedBytes> parts) {
  const Distance far = distance(from, to);
  const Memory memory = memory_of(parts);
  const bool any = wanted.empty() || wanted == "auto";
  ChosenRelay best;
  int best_rank = 0;
  std::string reach;  // but do not carry that memory
  for (const auto& [name, relay] : relays) {
    const wire::RelayAddress* address = find(to, name);
    if (!address || (!any && name != wanted)) continue;
    const RelayCapabilities can = relay->capabilities();
    if (!spans(can, far)) continue;
    if (!memory.carried_by(can)) {
      reach += fmt::format("{}{}", reach.empty() ? "" : ", ", name);
      continue;
    }
    const int this_rank = rank(can, name);
    if (best.relay && best_rank <= this_rank) continue;
    best = {.name = name, .relay = relay.get(), .address = address->address.bytes};
    best_rank = this_rank;
  }
  if (best.relay) return best;
  if (!reach.empty()) {
    return error(StatusCode::kUnsupported,
                 "no relay carries tensors in {} memory to '{}': {} would reach it and cannot; wanted a "
                 "relay with {} at both ends",
                 memory.name(), to.stage, reach, memory.capabilities());
  }
  std::string ours;
  for (const auto& [name, relay] : relays) ours += (ours.empty() ? "" : ", ") + name;
  return error(StatusCode::kUnavailable, "no relay carries tensors to '{}': here {}, there {}; wanted {} in both",
               to.stage, ours.empty() ? "none" : ours, names(to),
               any ? "a common one that spans the distance" : wanted);
}

}  // namespace millrace::loop
