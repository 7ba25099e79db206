// layers: a range of a model behind the first one. It gets no requests: rows come and go by the links of its chain, on
// a thread of the range's.
#include <memory>
#include <thread>
#include <utility>

#include "stages/generating/load_runner.h"
#include "stages/generating/workers.h"

namespace millrace {
namespace {

class LayersWorker final : public Worker {
 public:
  explicit LayersWorker(LayersParts parts) : parts_(std::move(parts)) {}
  ~LayersWorker() override {
    if (!server_) return;
    server_->stop();
    thread_.join();
  }

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(ChainLinks links, parts_.chain->open());
    ASSIGN_OR_RETURN(server_,
                     load_range(parts_.options, parts_.chain->ranges, parts_.chain->index, std::move(links), progress));
    weights_checksum_ = server_->model().weights_checksum();
    thread_ = std::thread([server = server_.get()] { server->run(); });
    return ok_status();
  }
  void start(ReqId id, Value, Emit& emit) override {
    emit.fail(id, error(StatusCode::kUnsupported, "a payload came to a range of layers, which takes none"));
  }
  void drop(ReqId) override {}
  bool describe(wire::StageStatus& status) const override {
    status.text_checksum = parts_.text_checksum;
    status.frozen_checksum = weights_checksum_;
    if (server_) status.steps = server_->counters().steps;
    return true;
  }

 private:
  const LayersParts parts_;
  std::unique_ptr<RangeServer> server_;
  std::thread thread_;  // of server_
  uint64_t weights_checksum_ = 0;
};

}  // namespace

std::unique_ptr<Worker> make_layers_worker(LayersParts parts) {
  return std::make_unique<LayersWorker>(std::move(parts));
}

}  // namespace millrace
