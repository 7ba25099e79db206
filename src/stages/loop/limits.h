// The named limits of a stage loop. What is over one fails its own request, or is counted and left out; nothing else
// suffers. Thread safety: constants.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::loop {

inline constexpr int64_t kNoWake = INT64_MAX;  // nothing is due

// Out of the stage, of one request, in all its edges together: chunks and bytes that wait for an acknowledgement, a
// credit or capacity in an outbox.
inline constexpr std::size_t kMaxWaitingChunks = 16'384;
inline constexpr std::size_t kMaxWaitingBytes = std::size_t{256} << 20;
// From here on the worker is asked to let the request rest, until half of it is gone.
inline constexpr std::size_t kCongestedChunks = 512;
inline constexpr std::size_t kCongestedBytes = kMaxWaitingBytes / 4;
inline constexpr std::size_t kCongestedClientBytes = std::size_t{4} << 20;  // of these, to a client that reads slowly
// One batch to one receiver: from here on the next chunk begins another one.
inline constexpr std::size_t kMaxBatchBytes = std::size_t{1} << 20;
inline constexpr int64_t kRetryMs = 2;  // until what was refused for want of capacity is tried again
inline constexpr int64_t kPeerWaitMs =
    2'000;                                  // a replica that is not in the table yet, or not connected, is waited for
inline constexpr int64_t kAckIdleMs = 100;  // what was delivered and not acknowledged is so after this time
// To a sender that has been silent since, the last acknowledgement is repeated after this time, then ever more rarely.
inline constexpr int64_t kAckRepeatMs = 500;

// Into the stage.
inline constexpr std::size_t kMaxWorkEvents = 1024;   // given to the worker and not begun, of all requests
inline constexpr std::size_t kMaxWorkOutputs = 1024;  // of the worker, not collected by the loop, of all requests
// Events that wait for the worker with their tensors still in the relay; those behind are copied, up to so many bytes.
inline constexpr std::size_t kUncopiedEvents = 2;
inline constexpr std::size_t kMaxDetachedBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxDrains = 256;         // gets of what is wanted no more, so that its sender goes on
inline constexpr int64_t kDefaultTimeoutMs = 600'000;  // of a request that came without a time limit
inline constexpr int64_t kMaxTimeoutMs = 86'400'000;   // a day: more is cut

// Requests that have ended here are remembered, so that late and repeated messages start nothing.
inline constexpr std::size_t kMaxTombstones = 65'536;
inline constexpr int64_t kTombstoneMs = 60'000;

// Messages of stages that our table does not know yet.
inline constexpr std::size_t kMaxParked = 1024;
inline constexpr std::size_t kMaxParkedBytes = std::size_t{64} << 20;
inline constexpr int64_t kParkMs = 1'000;

// With the coordinator.
inline constexpr int64_t kDeadlineGraceMs = 1'000;  // it ends a request that is over; if not, the stage does after this
inline constexpr std::size_t kMaxNotices = 16'384;  // failures and acknowledgements that wait for its outbox
inline constexpr int64_t kRegisterMs = 250;         // between two tries to register
inline constexpr int64_t kNoAnswerMs = 5'000;       // between two warnings about a silent coordinator
inline constexpr int64_t kDefaultLeaseMs = 2'000;   // where the Welcome names none
inline constexpr int64_t kCoordinatorSilentLeases = 3;  // nothing received from it for so many leases: it is gone
inline constexpr int64_t kWorkerStalledMs = 1'500;      // heartbeats add kHeartbeatMs: reported within 2 s
inline constexpr int64_t kDrainPollMs = 20;             // how late the end of what a worker holds may be noticed
inline constexpr int64_t kMaxGraceMs = 600'000;         // of a shutdown

// Of one step: answers that make answers. The rest is left to the next one, so that a worker that produces output
// continuously does not keep the heartbeat from leaving.
inline constexpr int kMaxRoundsPerStep = 4;

}  // namespace millrace::loop
