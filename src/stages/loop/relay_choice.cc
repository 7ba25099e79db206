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

// The smaller, the better.
int rank(const RelayCapabilities& can, const std::string& name) {
  const int copies = can.by_reference ? 0 : can.mapped_receive ? 1 : 2;
  const auto place = std::find(kRelayPreference.begin(), kRelayPreference.end(), name);
  return copies * static_cast<int>(kRelayPreference.size() + 1) + static_cast<int>(place - kRelayPreference.begin());
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
                                 const std::string& wanted) {
  const Distance far = distance(from, to);
  const bool any = wanted.empty() || wanted == "auto";
  ChosenRelay best;
  int best_rank = 0;
  for (const auto& [name, relay] : relays) {
    const wire::RelayAddress* address = find(to, name);
    if (!address || (!any && name != wanted)) continue;
    const RelayCapabilities can = relay->capabilities();
    const int this_rank = rank(can, name);
    if (!spans(can, far) || (best.relay && best_rank <= this_rank)) continue;
    best = {.name = name, .relay = relay.get(), .address = address->address.bytes};
    best_rank = this_rank;
  }
  if (best.relay) return best;
  std::string ours;
  for (const auto& [name, relay] : relays) ours += (ours.empty() ? "" : ", ") + name;
  return error(StatusCode::kUnavailable, "no relay carries tensors to '{}': here {}, there {}; wanted {} in both",
               to.stage, ours.empty() ? "none" : ours, names(to),
               any ? "a common one that spans the distance" : wanted);
}

}  // namespace millrace::loop
