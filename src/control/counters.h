// What the control plane refused and lost, counted for the whole process: numbers for /metrics.
//
// Thread safety: all functions from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"

namespace millrace {

// Why a frame was dropped. Append only: the names are labels of a metric.
enum class BadFrame : uint8_t {
  kEmpty = 0,       // no bytes
  kMultipart = 1,   // several parts; all of them are dropped as one
  kVersion = 2,     // another version of the wire format
  kMalformed = 3,   // everything else that the codec refuses
  kUnexpected = 4,  // a good message of a kind that has no business on that socket
};
inline constexpr std::size_t kBadFrameReasons = 5;

// What happened to connections.
enum class LinkEvent : uint8_t {
  kRefusedAuth = 0,      // a peer with a key of its own that is not ours
  kRefusedProtocol = 1,  // a peer that speaks no ZMTP, or CURVE with a wrong server key, or none where we want it
  kRefusedOther = 2,     // the handshake broke off: the peer went away, or was silent for too long
  kLost = 3,             // a working connection ended, by whatever way
};
inline constexpr std::size_t kLinkEvents = 4;

inline constexpr std::size_t kMaxOtherVersionPeers = 64;
inline constexpr std::size_t kMaxRefusedPeers = 64;
inline constexpr int64_t kRefusedLogMs = 30'000;

std::string_view bad_frame_name(BadFrame reason);   // "malformed"
std::string_view link_event_name(LinkEvent event);  // "refused_auth"

struct ControlCounters {
  std::array<uint64_t, kBadFrameReasons> bad_frames{};
  std::array<uint64_t, kLinkEvents> links{};
  uint64_t other_version_peers = 0;  // of another wire version, kMaxOtherVersionPeers at most

  uint64_t of(BadFrame reason) const { return bad_frames[static_cast<std::size_t>(reason)]; }
  uint64_t of(LinkEvent event) const { return links[static_cast<std::size_t>(event)]; }
};
ControlCounters control_counters();
// The same for Metrics::render(): control_bad_frames_total{reason}, control_links_total{event}.
std::vector<MetricSample> control_samples();

void count(BadFrame reason, std::string_view detail);  // also logs the first hundred of a kind
void count(LinkEvent event);
// A word about one that was refused: one line for each peer (an address; empty: it is not known) in kRefusedLogMs,
// however often it tries. kMaxRefusedPeers are distinguished.
void log_refused(LinkEvent event, const std::string& peer, int64_t now_ms);
// A frame of another version of the wire protocol; `peer` as far as it is known. Logged once for each peer and version,
// of which kMaxOtherVersionPeers are remembered; those beyond are counted alone.
void count_other_version(uint64_t version, const std::string& peer);

}  // namespace millrace
