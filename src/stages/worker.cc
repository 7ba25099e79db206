#include "stages/worker.h"

#include <exception>

namespace millrace {

void Worker::chunk(ReqId id, const std::string& from, Value, Emit& emit) {
  emit.fail(id, error(StatusCode::kUnsupported, "a chunk of '{}' came to a worker that takes none", from));
}

void Worker::chunks_done(ReqId, const std::string&, Emit&) {}

Result<std::string> Worker::flush_cache() { return Status(StatusCode::kUnsupported, "it keeps no cache"); }

int Worker::tick(int64_t, Emit&) { return kNever; }

namespace {

class FunctionWorker : public Worker {
 public:
  explicit FunctionWorker(WorkFunction work) : work_(std::move(work)) {}

  void start(ReqId id, Value payload, Emit& emit) override {
    Result<Value> result = work_(id, std::move(payload));
    if (result.ok()) return emit.result(id, std::move(result).value());
    emit.fail(id, result.status());
  }
  void drop(ReqId) override {}

 private:
  WorkFunction work_;
};

}  // namespace

std::unique_ptr<Worker> make_function_worker(WorkFunction work) {
  return std::make_unique<FunctionWorker>(std::move(work));
}

}  // namespace millrace
