// TextHost: the stages of a text pipeline over several hosts that one process runs, each a TextMember. They share a
// fate: when the incarnation of one is over, so are all, and a process that a person started joins again with the next.
//
// Thread safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/end_watch.h"
#include "app/options.h"
#include "app/pipeline_host.h"
#include "app/signals.h"
#include "app/text_member.h"

namespace millrace {

struct TextSide;

class TextHost {
 public:
  // The plan's seats that this process has; the plan, place and zmq must outlive it.
  static Result<std::unique_ptr<TextHost>> make(const TextPlan& plan, const std::vector<const TextSeat*>& seats,
                                                const StageOptions& options, const TextSide& side, uint64_t identity,
                                                uint64_t incarnation, const PipelinePlace& place, ZmqContext& zmq);

  void start();
  // The first member that has ended; nullptr: all go on.
  const TextMember* ended() const;
  // Why the stages of an ended member stopped: with the stage's own words where it has some.
  Status why(const TextMember& member) const;
  void request_stop();
  bool finished() const;  // after request_stop()

 private:
  TextHost() = default;
  std::vector<std::unique_ptr<TextMember>> members_;
};

// Runs them until somebody wants the end. OK: an end that was asked for. A child (options.parent is set) ends where its
// incarnation does; a process that joined goes on with another.
Status run_text_host(const PipelineSpec& spec, const StageOptions& options, const PipelinePlace& place,
                     const sigset_t& signals, EndWatch& end);

}  // namespace millrace
