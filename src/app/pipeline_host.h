// PipelineHost: the stages of a pipeline that one process runs, each a StageLoopStage on a thread of its own.
//
// Owner: the front, a child process, or one that joined from another host. When a stage ends by itself (it was told to,
// or it failed), ended() says so; the whole process then ends, and its supervisor starts it again.
//
// Thread safety: one thread.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "app/pipeline_place.h"
#include "stages/stage_loop_stage.h"

namespace millrace {

struct PipelineSeat {
  std::string stage;
  uint32_t replica = 0;
};

// "think", or "think:1" of a stage with replicas. kInvalidArgument names what is wrong.
Result<PipelineSeat> parse_seat(const std::string& text, const PipelineSpec& spec);
// Of --stages; at least one, none twice.
Result<std::vector<PipelineSeat>> parse_seats(const std::vector<std::string>& texts, const PipelineSpec& spec);

class PipelineHost {
 public:
  // spec, library, place and zmq must outlive it.
  // `spec_hash`: what the stages register with.
  static Result<std::unique_ptr<PipelineHost>> make(const PipelineSpec& spec, uint64_t spec_hash,
                                                    const Library& library, const PipelinePlace& place, ZmqContext& zmq,
                                                    const std::vector<PipelineSeat>& seats, uint64_t incarnation);
  ~PipelineHost();  // stop()

  void start();
  // True once a stage has ended; `status()` then says why: OK after a Shutdown.
  bool ended() const { return ended_.load(); }
  Status status() const;
  void stop();
  // Says to the leader that these stages end, and asks them to; before stop().
  void leave();

 private:
  PipelineHost() = default;
  struct Share;
  Status add(const PipelineSpec& spec, uint64_t spec_hash, const Library& library, const PipelinePlace& place,
             ZmqContext& zmq, const PipelineSeat& seat, const Share& share, uint64_t incarnation);

  std::vector<loop::Relays> relays_;
  std::vector<std::unique_ptr<StageLoopStage>> stages_;
  std::vector<std::thread> threads_;
  std::atomic<bool> ended_{false};
};

}  // namespace millrace
