#include "app/backend.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace millrace {
namespace {

constexpr int kBeforeQueue = 1024;  // requests that may be in the tokenizer or on their way to the scheduler's queue

std::string default_profile_folder() {
  const char* root = std::getenv("TMPDIR");
  return fmt::format("{}/millrace-profiles-{}", root != nullptr && *root != '\0' ? root : "/tmp", ::geteuid());
}

}  // namespace

Backend::Backend(const ServeOptions& options, TextSide& side)
    : options_(options), side_(side), tokenizer_(side.tokenizer, side.chat_template, side.max_prompt_bytes) {}

void Backend::make_front(std::unique_ptr<Inbox> inbox) {
  FrontOptions front;
  const int each = options_.model.max_running_requests + options_.model.max_queued_requests;
  front.max_requests = options_.dp * each + kBeforeQueue;
  front.request_timeout_s = options_.request_timeout_s;
  front.queue_timeout_ms = int64_t{options_.queue_timeout_s} * 1000;
  front.replicas = options_.dp;
  if (const auto policy = parse_replica_policy(options_.dp_policy); policy.ok()) front.replica_policy = *policy;
  front.restart_after_s = options_.stall_restart_s;
  front.profile_folder = options_.profile_dir.empty() ? default_profile_folder() : options_.profile_dir;
  front_ = std::make_unique<Front>(std::move(front), side_.facts, tokenizer_, std::move(inbox));
}

void Backend::start_front() {
  tokenizer_thread_ = std::thread([this] { tokenizer_.run(); });
  front_thread_ = std::thread([this] { front_->run(); });
}

void Backend::stop_front() {
  tokenizer_.close();
  tokenizer_.request_stop();
  front_->request_stop();
  if (tokenizer_thread_.joinable()) tokenizer_thread_.join();
  if (front_thread_.joinable()) front_thread_.join();
}

std::string scheduler_socket(int replica, uint64_t incarnation) {
  return fmt::format("scheduler-{}-{}", replica, incarnation);
}

Result<std::unique_ptr<SchedulerStage>> make_scheduler_stage(const ModelOptions& options, int replica, int replicas,
                                                             std::vector<int32_t> eos_token_ids, ZmqContext& zmq,
                                                             std::unique_ptr<Inbox> inbox,
                                                             std::shared_ptr<Outbox> detokenizer,
                                                             uint64_t incarnation) {
  const ModelOptions share = share_of(options, replica, replicas);
  const SchedulerSeat seat{.name = replica_name(replica, replicas), .replica = static_cast<uint32_t>(replica)};
  auto stage =
      std::make_unique<SchedulerStage>(scheduler_options(share, std::move(eos_token_ids)), make_load_runner(share),
                                       std::move(inbox), std::move(detokenizer), incarnation, seat);
  if (!share.kv_events.empty()) {
    ASSIGN_OR_RETURN(auto socket, EventSocket::bind(zmq, share.kv_events, share.kv_events_anywhere));
    stage->publish_events(std::make_unique<KvEventFeed>(std::move(socket), seat.replica));
  }
  return stage;
}

void print_error(const Status& status) {
  std::fprintf(stderr, "millrace: error: %s\n", status.message().c_str());
  std::fflush(stderr);
}

}  // namespace millrace
