// encode: encodes the pictures and audio of another stage's prompts. It gets no payloads: files and features come and
// go by an inbox of its own.
#include <atomic>
#include <memory>
#include <utility>

#include "stages/generating/workers.h"
#include "stages/media/encode_service.h"

namespace millrace {
namespace {

constexpr int kListenMs = 20;  // idle, it waits so long for a picture; the coordinator's commands wait as long
constexpr int kBusyMs = 2;     // while one is encoded

class EncodeWorker final : public Worker {
 public:
  explicit EncodeWorker(EncodeParts parts) : parts_(std::move(parts)) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(std::unique_ptr<MediaModel> model, parts_.make_media(progress));
    ASSIGN_OR_RETURN(transfer::TransferLinks links, parts_.open());
    weights_checksum_ = model->weights_checksum();
    service_ = std::make_unique<EncodeService>(std::move(model), std::move(links), parts_.facts);
    return ok_status();
  }

  void start(ReqId id, Value, Emit& emit) override {
    emit.fail(id, error(StatusCode::kUnsupported, "a payload came to a stage that encodes media, which takes none"));
  }
  void drop(ReqId) override {}

  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    if (command.action != wire::AdminAction::kFlushCache) return Worker::admin(command, now_ms, emit);
    service_->flush();
    emit.reply(command.id, std::string());
  }

  bool describe(wire::StageStatus& status) const override {
    status.text_checksum = parts_.text_checksum;
    status.frozen_checksum = weights_checksum_;
    if (service_) service_->describe(status.metrics);
    return true;
  }

  // Nothing else wakes it: it waits at its inbox, and is called again at once. A picture may take minutes, on a thread
  // of the encoder, so that no call here lasts.
  int tick(int64_t now_ms, Emit&) override {
    service_->receive(busy_ ? kBusyMs : kListenMs);
    busy_ = service_->step(now_ms);
    return 0;
  }

 private:
  const EncodeParts parts_;
  std::unique_ptr<EncodeService> service_;  // from load() on
  uint64_t weights_checksum_ = 0;
  bool busy_ = false;
};

}  // namespace

std::unique_ptr<Worker> make_encode_worker(EncodeParts parts) {
  return std::make_unique<EncodeWorker>(std::move(parts));
}

}  // namespace millrace
