// CoordinatorEngine: what the api asks of a pipeline, answered by its coordinator: requests, admin commands with this
// process's part of them, health and numbers.
//
// Owner: app/instance.h. Thread safety: all functions from any thread. The coordinator and the relays must outlive it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipeline/coordinator_thread.h"
#include "pipeline/weight_updates.h"
#include "stages/loop/relay_choice.h"
#include "stages/pipeline_engine.h"
#include "stages/profile_recorder.h"

namespace millrace {

class CoordinatorEngine : public PipelineEngine {
 public:
  // `relays`: the coordinator's, for samples(). `profile_folder` empty: the user's own.
  CoordinatorEngine(const PipelineSpec& spec, const Library& library, CoordinatorThread& coordinator,
                    const loop::Relays& relays, std::string profile_folder);
  ~CoordinatorEngine() override { stop(); }

  // Replicas with other weights than those that serve get these. On the coordinator's thread, after each of its ticks.
  void tick(int64_t now_ms);
  // Waits for a profile that is being written.
  void stop();

  ReqId submit(PipelineRequest request, Sink sink) override;
  void set_prompt(ReqId id, Result<wire::TokenizedRequest> request, PlacementHint hint) override {
    coordinator_.set_prompt(id, std::move(request), hint);
  }
  bool is_live(ReqId id) const override { return coordinator_.is_live(id); }
  void abort(ReqId id) override { coordinator_.abort(id); }
  void cancel(ReqId id) override { coordinator_.cancel(id); }
  void admin(wire::AdminAction action, int64_t timeout_ms, AdminCommands::Done done) override;
  WeightUpdates* weights() const override { return weights_.get(); }
  Health health() const override;
  std::vector<MetricSample> samples() const override;
  int64_t request_timeout_s() const override { return spec_.request_timeout_s; }
  const std::string& name() const override { return spec_.name; }
  const std::string& picture() const override { return picture_; }
  std::vector<StageLink> links() const override;

 private:
  void end_profile(std::vector<wire::AdminReply> replies, AdminCommands::Done done);

  const PipelineSpec& spec_;
  const std::string picture_;
  CoordinatorThread& coordinator_;
  const loop::Relays& relays_;
  const std::unique_ptr<WeightUpdates> weights_;
  ProfileRecorder profile_;
  std::mutex writer_mutex_;
  std::thread profile_writer_;  // one at a time, as there is one profile
};

}  // namespace millrace
