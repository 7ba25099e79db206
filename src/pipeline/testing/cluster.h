// A whole pipeline in one thread and in virtual time: the coordinator, eleven stage loops with hash workers
// (toy_pipeline.h), a simulated control plane (control/sim_bus.h) and data plane (relay/sim), clients, a supervisor,
// and accidents, all from one seed. The same seed gives the same run.
//
// run_cluster() submits requests while messages are lost, doubled, late and out of order, nodes are killed, paused and
// cut off, the coordinator dies and another takes its place, clients abort and do not read; then it lets the world
// heal, asks a few more requests, which must succeed, and compares: one end for each request; what succeeded has
// exactly the bytes that evaluate() gives, chunk by chunk; every book is back to zero.
//
// For tests only. Thread safety: runs of their own on as many threads as one likes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::testing {

// Bugs that can be put in on purpose, to see that the checks find them.
enum class Sabotage : uint8_t {
  kNone = 0,
  kLoseAbortAcks,  // a stage's AbortAck never leaves
  kLoseAborts,     // no AbortRequest arrives
  kDropCleanup,    // the coordinator does not forget what an ended request was fetching
  kSwapChunks,     // two chunks of an answer change places
  kLoseOneChunk,   // a chunk of an answer is lost, which the numbers do not show
  kWrongReplica,   // one replica gets what is another's
  kFlipByte,       // one byte of a payload without tensors changes on the way
};

struct ClusterOptions {
  uint64_t seed = 1;
  int requests = 14;
  bool trace = false;  // writes what happens to stderr
  Sabotage sabotage = Sabotage::kNone;
};

struct ClusterReport {
  std::vector<std::string> faults;  // what is wrong; empty: all is well
  int completed = 0, failed = 0, aborted = 0, refused = 0;
  int kills = 0, pauses = 0, cuts = 0, delays = 0, successions = 0;
  uint64_t fenced = 0, repeated = 0, late = 0;
  uint64_t hash = 0;  // of all ends, in order: equal for equal seeds
  int64_t virtual_ms = 0;
};

ClusterReport run_cluster(const ClusterOptions& options);

}  // namespace millrace::testing
