// Intake: what comes into a stage for its requests. A message that is not refused makes the request where it is new,
// within the spec's max_requests and the time that is left of it; one of a request that has ended here starts nothing.
//
// Whether the sender may speak at all is the StageLoop's to check. Owner: a StageLoop. Thread safety: the loop's
// thread.
#pragma once

#include <vector>

#include "stages/loop/fan_in.h"

namespace millrace::loop {

class Intake {
 public:
  Intake(LoopContext& context, RequestTable& requests, InputStreams& streams, FanIn& fan_in, Fetches& fetches,
         InputAcks& acks, Notices& notices)
      : context_(context),
        requests_(requests),
        streams_(streams),
        fan_in_(fan_in),
        fetches_(fetches),
        acks_(acks),
        notices_(notices) {}

  // Of the coordinator. An error, here and below: why the request of this message has to end.
  Status on_submit(wire::Submit message);
  // Of a stage before this one.
  Status on_chunk(const wire::Origin& from, wire::Chunk& chunk);
  // A get of a live request, as RelayCalls has collected it, or one that was refused before.
  Status on_fetched(LoopRequest& request, CallEnd& end);
  Status retry(LoopRequest& request, Fetches::Waiting get);

 private:
  Status check_begin(int64_t limit_ms) const;
  // nullptr: it was refused, and has failed.
  LoopRequest* begin(ReqId id, wire::Opening opening);
  Status on_chunk_of(LoopRequest& request, const wire::Origin& from, wire::Chunk& chunk);
  void on_late_chunk(Ended how, const wire::Origin& from, const wire::Chunk& chunk);

  LoopContext& context_;
  RequestTable& requests_;
  InputStreams& streams_;
  FanIn& fan_in_;
  Fetches& fetches_;
  InputAcks& acks_;
  Notices& notices_;
};

}  // namespace millrace::loop
