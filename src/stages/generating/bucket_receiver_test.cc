// Buckets over a group that the test plays: however a broadcast is cut into slices, the same model comes out.
#include "stages/generating/bucket_receiver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "formats/model_config.h"

namespace millrace {
namespace {

constexpr const char* kFolder = MILLRACE_SOURCE_DIR "/tests/golden/models/tiny_qwen3";

std::shared_ptr<const Model> load(uint64_t version) {
  ThreadPool pool(1);
  const LoadOptions options{.pool = &pool, .isa = kernels::resolve_isa().value()};
  auto store = std::make_shared<WeightStore>(WeightStore::open(kFolder).value());
  return load_model(open_model_dir(kFolder).value().config, store, version, options).value();
}

class FakeGroup : public collective::ProcessGroup {
 public:
  explicit FakeGroup(std::size_t slice_bytes) : slice_bytes_(slice_bytes) {}

  Status receive_broadcast(int root, uint64_t bytes, const collective::ReceiveLimits&,
                           collective::SliceConsumer on_slice) override {
    EXPECT_EQ(root, 0);
    if (broadcasts.empty()) return error(StatusCode::kUnavailable, "rank 0 closed the connection");
    const std::string data = std::move(broadcasts.front());
    broadcasts.pop_front();
    EXPECT_EQ(bytes, data.size());
    Status refused;
    for (std::size_t at = 0; at < data.size(); at += slice_bytes_) {
      const auto slice = std::as_bytes(std::span(data)).subspan(at, std::min(slice_bytes_, data.size() - at));
      if (refused.ok()) refused = on_slice(slice);
    }
    return refused;
  }
  Status await_loss(collective::Clock::time_point) override { return ok_status(); }

  std::deque<std::string> broadcasts;

 private:
  const std::size_t slice_bytes_;
};

// All tensors of the folder, with the norms changed, in two buckets.
WeightPlan make_plan(bool flattened, std::deque<std::string>& broadcasts) {
  WeightStore store = WeightStore::open(kFolder).value();
  WeightPlan plan{.group = "g", .flattened = flattened, .buckets = {{}, {}}};
  std::vector<std::string> bytes(2);
  for (const std::string& name : store.names()) {
    const TensorView view = store.get_any(name).value();
    std::string data(static_cast<const char*>(view.data), view.size_bytes());
    if (name.find("layernorm") != std::string::npos) data.assign(data.size(), '\0');
    const std::size_t bucket = name < "model.layers.1" ? 0 : 1;
    plan.buckets[bucket].push_back({name, view.dtype, view.shape});
    bytes[bucket] += data;
    if (!flattened) broadcasts.push_back(data);
  }
  if (flattened) broadcasts.assign(bytes.begin(), bytes.end());
  return plan;
}

TEST(BucketReceiver, AnySlicesMakeTheSameModel) {
  uint64_t wanted = 0;
  for (const bool flattened : {true, false}) {
    for (const std::size_t slice_bytes : {std::size_t{7}, std::size_t{1000}, std::size_t{1} << 20}) {
      FakeGroup group(slice_bytes);
      const WeightPlan plan = make_plan(flattened, group.broadcasts);
      LiveWeights weights(load(1), {.isa = kernels::resolve_isa().value()});
      ASSERT_TRUE(weights.check(plan.tensors()).ok());
      ReceiveProgress progress;
      const auto model = receive_weights(group, plan, weights, 2, progress);
      ASSERT_TRUE(model.ok()) << model.status().to_string();
      EXPECT_TRUE(group.broadcasts.empty());
      EXPECT_TRUE(progress.started);
      EXPECT_EQ(progress.buckets, 2);
      EXPECT_EQ((*model)->weight_version(), 2u);
      if (wanted == 0) wanted = (*model)->weights_checksum();
      EXPECT_EQ((*model)->weights_checksum(), wanted);
    }
  }
  EXPECT_NE(wanted, load(1)->weights_checksum());
}

TEST(BucketReceiver, ALostTrainerEndsIt) {
  FakeGroup group(1000);
  const WeightPlan plan = make_plan(false, group.broadcasts);
  group.broadcasts.resize(group.broadcasts.size() / 2);
  LiveWeights weights(load(1), {.isa = kernels::resolve_isa().value()});
  ReceiveProgress progress;
  EXPECT_EQ(receive_weights(group, plan, weights, 2, progress).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace millrace
