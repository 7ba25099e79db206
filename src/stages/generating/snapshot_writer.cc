#include "stages/generating/snapshot_writer.h"

#include <utility>

#include "base/low_priority.h"
#include "base/trace.h"

namespace millrace {

SnapshotWriter::~SnapshotWriter() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void SnapshotWriter::begin(uint64_t command, std::shared_ptr<const Model> model, std::string label) {
  Wanted wanted{command, std::move(model), std::move(label)};
  if (!thread_.joinable()) return start(std::move(wanted));
  stop_.store(true, std::memory_order_relaxed);
  if (next_) ended_.push_back({next_->command, error(StatusCode::kCancelled, "another snapshot was wanted")});
  next_ = std::move(wanted);
}

void SnapshotWriter::start(Wanted wanted) {
  command_ = wanted.command;
  stop_.store(false, std::memory_order_relaxed);
  done_.store(false, std::memory_order_relaxed);
  thread_ = std::thread([this, model = std::move(wanted.model), label = std::move(wanted.label)]() mutable {
    trace::name_thread("snapshot writer");
    run_at_low_priority("snapshots are written");
    path_ = write_(*model, label, stop_);
    model.reset();
    done_.store(true, std::memory_order_release);
  });
}

std::vector<SnapshotWriter::Written> SnapshotWriter::take_written() {
  if (thread_.joinable() && done_.load(std::memory_order_acquire)) {
    thread_.join();
    ended_.push_back({command_, *std::exchange(path_, std::nullopt)});
    if (next_) start(*std::exchange(next_, std::nullopt));
  }
  return std::exchange(ended_, {});
}

}  // namespace millrace
