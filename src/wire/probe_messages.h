// The messages by which the coordinator finds requests on which no stage works any more, because a message was lost: it
// asks the stages of a silent request what they have of it. pipeline/lost_requests.h has what follows from the answers.
//
// A stage that does not list a request has nothing of it. A repeated RequestProbe is answered again; a report of
// another round than the last one is ignored.
//
// Thread safety: values; a message belongs to its holder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "wire/limits.h"
#include "wire/pipeline_messages.h"

namespace millrace::wire {

// coordinator -> stage: what do you have of these requests?
struct RequestProbe {
  Origin from;
  uint64_t round = 0;
  std::vector<ReqId> ids;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, round), v(3, ids, kMaxProbedRequests);
  }
};

enum class StageRequestState : uint8_t {
  kWaiting = 0,   // for what other stages send; until then nothing happens here
  kWorking = 1,   // on it, or sends, or is given what others have sent
  kFinished = 2,  // its result has left
  kFailed = 3,    // its Failure has left, or is about to
};

// What one stage has of one request.
struct StageRequest {
  ReqId id;
  StageRequestState state = StageRequestState::kWaiting;
  std::vector<std::string> sources;  // stages from which something of it has come
  std::vector<std::string> targets;  // stages to which something of it has left

  template <typename V>
  void visit(V&& v) {
    v(1, id), v(2, state), v(3, sources, kMaxSources), v(4, targets, kMaxSources);
  }
  friend bool operator==(const StageRequest&, const StageRequest&) = default;
};

// stage -> coordinator, one for each probe.
struct RequestReport {
  Origin from;
  uint64_t round = 0;  // the probe's
  std::vector<StageRequest> requests;

  template <typename V>
  void visit(V&& v) {
    v(1, from), v(2, round), v(3, requests, kMaxProbedRequests);
  }
};

// As in pipeline_messages.h.
Status validate(const RequestProbe& message);
Status validate(const StageRequest& request);
Status validate(const RequestReport& message);

}  // namespace millrace::wire
