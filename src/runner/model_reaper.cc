#include "runner/model_reaper.h"

#include <utility>

#include "base/low_priority.h"
#include "base/trace.h"

namespace millrace {

ModelReaper::ModelReaper() {
  thread_ = std::thread([this] {
    trace::name_thread("model reaper");
    run_at_low_priority("weights are freed");
    while (auto model = queue_.pop(-1)) {
      model->reset();
      --pending_;
    }
  });
}

ModelReaper::~ModelReaper() {
  queue_.close();  // what is queued still comes out
  thread_.join();
}

void ModelReaper::release(std::shared_ptr<const Model> model) {
  if (model == nullptr) return;
  ++pending_;
  const Status pushed = queue_.push(std::move(model));
  CHECK(pushed.ok());
}

}  // namespace millrace
