// InputStreams: the numbered edges into a stage, and the streams on them. Numbers have no gap: a gap, a chunk after the
// end or a second source on one edge fails the request; a repeated chunk is ignored and counted. Bytes may come in any
// order; the worker gets the chunks in theirs, and nothing before the request's payload unless the spec allows it.
//
// When all that a source will ever send for a request is here, it is reported to the coordinator: from then on the loss
// of that stage costs the request nothing, as far as it is only needed here.
//
// Owner: a StageLoop. Thread safety: the loop's thread.
#pragma once

#include <string>
#include <vector>

#include "stages/loop/fetches.h"
#include "stages/loop/input_acks.h"
#include "stages/loop/notices.h"
#include "stages/loop/work_queue.h"

namespace millrace::loop {

class InputStreams {
 public:
  InputStreams(LoopContext& context, Fetches& fetches, WorkQueue& work, InputAcks& acks, Notices& notices)
      : context_(context),
        sources_(context.config.sources()),
        fetches_(fetches),
        work_(work),
        acks_(acks),
        notices_(notices) {}

  // All of a live request. The edge of a numbered chunk, where its number is the one that is wanted; nullptr: it came
  // before.
  Result<InEdge*> next_on_edge(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk);
  Status on_chunk(LoopRequest& request, const wire::Origin& from, wire::Chunk& chunk);
  Status on_end(LoopRequest& request, const wire::Origin& from, const wire::Chunk& chunk);
  Status fetch(LoopRequest& request, CallPurpose purpose, wire::Payload payload);
  // The bytes of a chunk.
  Status arrived(LoopRequest& request, const std::string& from, uint64_t seq, Value value);
  // The result of a source has its turn on this edge; then its bytes are here.
  static void accept_result(InEdge& edge);
  void result_arrived(LoopRequest& request, const std::string& from);
  // Gives the worker what is here and whose turn it is; what it does not want after its result counts as taken.
  void deliver(LoopRequest& request);
  // An error: its stream has begun while its payload is neither here nor on its way.
  Status check_payload_first(const LoopRequest& request) const;
  void report_complete_inputs(LoopRequest& request);
  // The request ends: what it holds is not wanted.
  static void drop(LoopRequest& request);
  // All that this replica sends on its edge has come, or is being fetched.
  static bool has_end_of(const LoopRequest& request, const wire::Origin& from);
  // A sender in the middle of a stream that is lost; empty: none.
  std::string lost_sender(const LoopRequest& request) const;

  const std::vector<std::string>& sources() const { return sources_; }

 private:
  bool may_deliver(const LoopRequest& request) const {
    return request.in.started || context_.config.spec.can_accept_stream_before_payload;
  }
  bool deliver_now(LoopRequest& request, const std::string& from, InEdge& edge, wire::ChunkBody& body);
  void deliver(LoopRequest& request, const std::string& from, InEdge& edge);
  bool has_all_of(const LoopRequest& request, const std::string& source) const;

  LoopContext& context_;
  const std::vector<std::string> sources_;
  Fetches& fetches_;
  WorkQueue& work_;
  InputAcks& acks_;
  Notices& notices_;
};

}  // namespace millrace::loop
