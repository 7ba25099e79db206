#include "control/counters.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr uint64_t kLogged = 100;  // of each kind, then silence: a hostile peer must not fill the log

std::array<std::atomic<uint64_t>, kBadFrameReasons> g_bad_frames{};
std::array<std::atomic<uint64_t>, kLinkEvents> g_links{};
struct Refused {
  std::optional<int64_t> logged_ms;
  uint64_t unlogged = 0;  // since then
};
std::mutex g_refused_mutex;
std::map<std::string, Refused> g_refused;  // by address; under the mutex
std::optional<int64_t> g_last_logged_ms;   // of any peer; under the mutex
std::mutex g_other_version_mutex;
std::set<std::pair<uint64_t, std::string>> g_other_version_peers;  // under the mutex

}  // namespace

std::string_view bad_frame_name(BadFrame reason) {
  constexpr std::array<std::string_view, kBadFrameReasons> kNames = {"empty", "multipart", "version", "malformed",
                                                                     "unexpected"};
  return kNames[static_cast<std::size_t>(reason)];
}

std::string_view link_event_name(LinkEvent event) {
  constexpr std::array<std::string_view, kLinkEvents> kNames = {"refused_auth", "refused_protocol", "refused_other",
                                                                "lost"};
  return kNames[static_cast<std::size_t>(event)];
}

void count(BadFrame reason, std::string_view detail) {
  if (g_bad_frames[static_cast<std::size_t>(reason)].fetch_add(1) < kLogged) {
    LOG_WARNING("dropped a frame ({}): {}", bad_frame_name(reason), detail);
  }
}

void count_other_version(uint64_t version, const std::string& peer) {
  g_bad_frames[static_cast<std::size_t>(BadFrame::kVersion)].fetch_add(1);
  {
    std::lock_guard lock(g_other_version_mutex);
    // Each peer is logged once; the bound is for a peer that makes names up.
    if (g_other_version_peers.size() >= kMaxOtherVersionPeers) return;
    if (!g_other_version_peers.emplace(version, peer).second) return;
  }
  LOG_WARNING("{} speaks wire version {}; wanted {}: its frames are dropped (start both with the same build)",
              peer.empty() ? "a peer" : peer, version, wire::kWireVersion);
}

void count(LinkEvent event) { g_links[static_cast<std::size_t>(event)].fetch_add(1); }

void log_refused(LinkEvent event, const std::string& peer, int64_t now_ms) {
  // Only a key that does not fit is a misconfiguration for certain; the rest is ends and restarts, too.
  if (event != LinkEvent::kRefusedAuth && event != LinkEvent::kRefusedProtocol) return;
  uint64_t more = 0;
  {
    std::lock_guard lock(g_refused_mutex);
    // Those beyond share one entry, so that many addresses do not fill the log either.
    const bool known = g_refused.size() < kMaxRefusedPeers || g_refused.contains(peer);
    Refused& refused = g_refused[known ? peer : std::string()];
    ++refused.unlogged;
    if (refused.logged_ms && now_ms - *refused.logged_ms < kRefusedLogMs) return;
    // Without an address it is most likely the one just named.
    if (peer.empty() && g_last_logged_ms && now_ms - *g_last_logged_ms < kRefusedLogMs) return;
    refused.logged_ms = g_last_logged_ms = now_ms;
    more = std::exchange(refused.unlogged, 0);
  }
  LOG_WARNING("refused {} from {} in the handshake ({}): has it another key?",
              more == 1 ? "a connection" : fmt::format("{} connections", more),
              peer.empty() ? "an unknown address" : peer, link_event_name(event));
}

ControlCounters control_counters() {
  ControlCounters out;
  for (std::size_t i = 0; i < kBadFrameReasons; ++i) out.bad_frames[i] = g_bad_frames[i].load();
  for (std::size_t i = 0; i < kLinkEvents; ++i) out.links[i] = g_links[i].load();
  std::lock_guard lock(g_other_version_mutex);
  out.other_version_peers = g_other_version_peers.size();
  return out;
}

std::vector<MetricSample> control_samples() {
  const ControlCounters now = control_counters();
  std::vector<MetricSample> out;
  for (std::size_t i = 0; i < kBadFrameReasons; ++i) {
    out.push_back({"control_bad_frames_total",
                   "Frames between stages that were dropped.",
                   {{"reason", std::string(bad_frame_name(static_cast<BadFrame>(i)))}},
                   static_cast<double>(now.bad_frames[i])});
  }
  for (std::size_t i = 0; i < kLinkEvents; ++i) {
    out.push_back({"control_links_total",
                   "Connections between stages that were refused or lost.",
                   {{"event", std::string(link_event_name(static_cast<LinkEvent>(i)))}},
                   static_cast<double>(now.links[i])});
  }
  out.push_back({"control_foreign_peers",
                 "Peers that spoke another version of the wire protocol.",
                 {},
                 static_cast<double>(now.other_version_peers)});
  return out;
}

}  // namespace millrace
