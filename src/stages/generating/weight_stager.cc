#include "stages/generating/weight_stager.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "base/trace.h"

namespace millrace {

namespace {

constexpr int kStagerNice = 19;

// Of this thread alone: on Linux a thread has a nice value of its own.
void run_at_low_priority() {
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kStagerNice) != 0) {
    LOG_WARNING("new weights are made at normal priority: steps may take longer meanwhile");
  }
}

}  // namespace

WeightStager::~WeightStager() {
  if (thread_.joinable()) thread_.join();
}

Status WeightStager::begin(uint64_t command, std::string path, uint64_t version) {
  if (thread_.joinable()) {
    return error(StatusCode::kConflict, "weights of version {} are being loaded; wanted one update at a time",
                 version_);
  }
  command_ = command;
  version_ = version;
  dropped_ = false;
  done_.store(false, std::memory_order_relaxed);
  thread_ = std::thread([this, path = std::move(path), version] {
    trace::name_thread("weight stager");
    run_at_low_priority();
    made_ = make_(path, version);
    done_.store(true, std::memory_order_release);
  });
  return ok_status();
}

void WeightStager::drop() {
  dropped_ = true;
  runner_.drop_staged();
}

std::optional<WeightStager::Made> WeightStager::take_made() {
  if (!thread_.joinable() || !done_.load(std::memory_order_acquire)) return std::nullopt;
  thread_.join();
  Weights weights = *std::exchange(made_, std::nullopt);
  Status status = weights.status();
  if (dropped_) status = error(StatusCode::kCancelled, "the update to weight version {} was given up", version_);
  if (status.ok()) status = runner_.stage(std::move(weights).value());
  return Made{command_, std::move(status)};
}

}  // namespace millrace
