#include "relay/nccl/link.h"

#include <sched.h>

#include "base/log.h"

namespace millrace::nccl {
namespace {

constexpr int kSpins = 20;         // looks at the device without a pause
constexpr int64_t kSettleUs = 50;  // between two looks after that

}  // namespace

void Link::start() {
  thread_ = std::thread([self = shared_from_this()] { self->thread_main(); });
}

void Link::thread_main() {
  const Status why = run();
  dead_ = true;
  control_.hang_up();
  channel_.reset();  // before anybody hears of the end: now nothing reads or writes any bytes
  if (why.code() == StatusCode::kInvalidArgument) core_->table.count_bad_frame();
  lost(why);
  free_device_memory();
  finished_ = true;
}

void Link::finish() {
  if (!thread_.joinable()) return;
  if (finished()) {
    thread_.join();
  } else {
    LOG_WARNING("a thread of the NCCL relay is left behind: the device does not answer");
    thread_.detach();
  }
}

Status Link::settle(int64_t limit_ms) {
  const int64_t deadline_ms = relay_now_ms() + limit_ms;
  for (int round = 0;; ++round) {
    ASSIGN_OR_RETURN(const bool over, channel_->poll());
    if (over) return ok_status();
    if (round < kSpins) {
      ::sched_yield();
      continue;
    }
    RETURN_IF_ERROR(control_.pump(kSettleUs));
    if (relay_now_ms() > deadline_ms) {
      return error(StatusCode::kUnavailable, "the device was not ready within {} ms", limit_ms);
    }
  }
}

Status Link::join(const UniqueId& id, int rank) {
  ASSIGN_OR_RETURN(channel_, Channel::open(core_->api, core_->device));
  RETURN_IF_ERROR(channel_->join(id, rank));
  return settle(kJoinMs);
}

}  // namespace millrace::nccl
