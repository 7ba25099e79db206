#include "stages/generating/weight_stager.h"

#include <utility>

#include "base/low_priority.h"
#include "base/trace.h"

namespace millrace {

WeightStager::~WeightStager() {
  if (thread_.joinable()) thread_.join();
}

void WeightStager::begin(Wanted wanted) {
  if (!thread_.joinable()) return start(std::move(wanted));
  const Status why = error(StatusCode::kCancelled, "weights of version {} are to be loaded instead", wanted.version);
  if (dropped_.ok()) dropped_ = why;
  if (next_) give_up(*next_, why);
  next_ = std::move(wanted);
}

void WeightStager::start(Wanted wanted) {
  current_ = std::move(wanted);
  dropped_ = ok_status();
  done_.store(false, std::memory_order_relaxed);
  thread_ = std::thread(
      [this, make = std::exchange(current_.make, nullptr), path = current_.path, version = current_.version] {
        trace::name_thread("weight stager");
        run_at_low_priority("new weights are made");
        made_ = make ? make() : make_(path, version);
        done_.store(true, std::memory_order_release);
      });
}

void WeightStager::give_up(const Wanted& wanted, const Status& why) {
  ended_.push_back({.command = wanted.command, .version = wanted.version, .status = why});
}

void WeightStager::drop(uint64_t version, uint64_t kept) {
  const auto meant = [version](uint64_t other) { return version == 0 || version == other; };
  const auto why = [](uint64_t of) {
    return error(StatusCode::kCancelled, "the update to weight version {} was given up", of);
  };
  if (thread_.joinable() && dropped_.ok() && meant(current_.version)) dropped_ = why(current_.version);
  if (next_ && meant(next_->version)) {
    give_up(*next_, why(next_->version));
    next_.reset();
  }
  const uint64_t staged = runner_.staged_version();
  if (staged != 0 && staged != kept && meant(staged)) runner_.drop_staged();
}

std::vector<WeightStager::Made> WeightStager::take_made() {
  if (thread_.joinable() && done_.load(std::memory_order_acquire)) {
    thread_.join();
    ended_.push_back(finish());
    if (next_) start(*std::exchange(next_, std::nullopt));
  }
  return std::exchange(ended_, {});
}

// The thread has ended: what it made is staged, or thrown away.
WeightStager::Made WeightStager::finish() {
  Weights weights = *std::exchange(made_, std::nullopt);
  Made made{.command = current_.command, .version = current_.version, .status = weights.status()};
  if (!dropped_.ok()) made.status = dropped_;
  if (!made.status.ok()) return made;
  made.checksum = (*weights)->weights_checksum();
  if (current_.checksum != 0 && made.checksum != current_.checksum) {
    made.status = error(StatusCode::kConflict,
                        "{} has weights with the checksum {:016x}; wanted {:016x}, those that version {} was first "
                        "loaded with: the folder has changed since; update the weights again",
                        current_.path.empty() ? "the model's folder" : current_.path, made.checksum, current_.checksum,
                        current_.version);
  } else {
    made.model = *weights;
    made.status = runner_.stage(std::move(weights).value());
  }
  return made;
}

}  // namespace millrace
