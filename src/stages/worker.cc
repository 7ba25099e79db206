#include "stages/worker.h"

#include <exception>

#include "stages/generating/token_values.h"

namespace millrace {

void Worker::chunk(ReqId id, const std::string& from, Value, Emit& emit) {
  emit.fail(id, error(StatusCode::kUnsupported, "a chunk of '{}' came to a worker that takes none", from));
}

void Worker::generate(ReqId id, wire::TokenizedRequest, Emit& emit) {
  emit.fail(id, error(StatusCode::kUnsupported, "a tokenized prompt came to a worker that does not generate"));
}

void Worker::tokens(ReqId id, const std::string& from, wire::TokenDelta delta, Emit& emit) {
  // A worker that does not know deltas gets them as a payload: {"ids"}.
  if (delta.tokens.empty()) return;
  Value ids;
  ids.set(std::string(kIdsKey), ids_tensor(delta.tokens));
  chunk(id, from, std::move(ids), emit);
}

void Worker::chunks_done(ReqId, const std::string&, Emit&) {}

Status Worker::load(const LoadProgress&) { return ok_status(); }

void Worker::admin(const wire::AdminRequest& command, int64_t, Emit& emit) {
  if (command.action == wire::AdminAction::kFlushCache) {
    return emit.reply(command.id, Status(StatusCode::kUnsupported, "it keeps no cache"));
  }
  emit.reply(command.id,
             error(StatusCode::kUnsupported, "the admin command {} is unknown here", static_cast<int>(command.action)));
}

bool Worker::describe(wire::StageStatus&) const { return false; }

std::optional<Pulse> Worker::pulse() const { return std::nullopt; }

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
