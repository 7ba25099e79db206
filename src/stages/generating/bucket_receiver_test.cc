// Buckets over a group that the test plays: however a broadcast is cut into slices, the same model comes out.
#include "stages/generating/bucket_receiver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "formats/model_config.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

using Quantize = std::optional<DType>;

std::string folder_of(const std::string& model) { return MILLRACE_SOURCE_DIR "/tests/golden/models/" + model; }

std::shared_ptr<const Model> load(uint64_t version, const std::string& model = "tiny_qwen3", Quantize quantize = {}) {
  ThreadPool pool(1);
  const LoadOptions options{.pool = &pool, .isa = kernels::resolve_isa().value(), .quantize = quantize};
  auto store = std::make_shared<WeightStore>(WeightStore::open(folder_of(model)).value());
  return load_model(open_model_dir(folder_of(model)).value().config, store, version, options).value();
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

enum class Norms { kAsTheyAre, kZero };

// All tensors of the folder in two buckets.
WeightPlan make_plan(bool flattened, std::deque<std::string>& broadcasts, const std::string& model = "tiny_qwen3",
                     Norms norms = Norms::kZero) {
  WeightStore store = WeightStore::open(folder_of(model)).value();
  WeightPlan plan{.group = "g", .flattened = flattened, .buckets = {{}, {}}};
  std::vector<std::string> bytes(2);
  for (const std::string& name : store.names()) {
    const TensorView view = store.get_any(name).value();
    std::string data(static_cast<const char*>(view.data), view.size_bytes());
    if (norms == Norms::kZero && name.find("layernorm") != std::string::npos) data.assign(data.size(), '\0');
    const std::size_t bucket = name < "model.layers.1" ? 0 : 1;
    plan.buckets[bucket].push_back({name, view.dtype, view.shape});
    bytes[bucket] += data;
    if (!flattened) broadcasts.push_back(data);
  }
  if (flattened) broadcasts.assign(bytes.begin(), bytes.end());
  return plan;
}

std::vector<float> logits(const std::shared_ptr<const Model>& model) {
  return SequenceEngine(model, kernels::resolve_isa().value(), 1, 16, 32).logits({1, 38, 75, 2, 90}, 0);
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

// Of experts, heads that are tied and not, and quantized weights: with the zeroed norms of another update before, so
// that nothing of the folder serves.
TEST(BucketReceiver, WhatABroadcastMakesIsWhatTheFolderMakes) {
  for (const char* name : {"tiny_qwen3_moe", "tiny_llama_linear", "tiny_llama_gqa2_tied"}) {
    for (const Quantize quantize : {Quantize(), Quantize(DType::kQ8_0), Quantize(DType::kQ4_0)}) {
      SCOPED_TRACE(testing::Message() << name << " " << dtype_name(quantize.value_or(DType::kF32)));
      const LoadOptions options{.isa = kernels::resolve_isa().value(), .quantize = quantize};
      std::shared_ptr<const Model> serving = load(1, name, quantize);
      const std::shared_ptr<const Model> loaded = serving;
      for (const Norms norms : {Norms::kZero, Norms::kAsTheyAre}) {
        FakeGroup group(1000);
        const WeightPlan plan = make_plan(true, group.broadcasts, name, norms);
        LiveWeights weights(serving, options);
        ASSERT_TRUE(weights.check(plan.tensors()).ok());
        ReceiveProgress progress;
        const auto model = receive_weights(group, plan, weights, serving->weight_version() + 1, progress);
        ASSERT_TRUE(model.ok()) << model.status().to_string();
        serving = *model;
        EXPECT_EQ(serving->weights_checksum() == loaded->weights_checksum(), norms == Norms::kAsTheyAre);
      }
      EXPECT_EQ(logits(serving), logits(loaded));
    }
  }
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
