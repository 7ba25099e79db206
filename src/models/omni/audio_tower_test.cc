// The audio tower and the rows that it makes against Hugging Face transformers (tests/golden/omni/{sounds,windows},
// tests/oracles/omni_audio.py).
#include "models/omni/audio_tower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/mapped_file.h"
#include "formats/testing/test_files.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kLengths = 13;
constexpr int kVocabulary = 7;
constexpr bool kNotCancelled = true;

const std::string kFolder = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/";

struct GoldenTower {
  std::shared_ptr<const AudioTower> tower;
  WeightStore values;
};

AudioConfig config_of(const std::string& name) {
  const auto text = read_small_file(kFolder + name + "/config.json", 1 << 20);
  CHECK(text.ok());
  const json root = json::parse(*text);
  const auto config = parse_audio_config(root, root["audio_config"]["output_dim"], kVocabulary);
  CHECK(config.ok());
  return *config;
}

GoldenTower open_golden_tower(const std::string& name, const LoadOptions& options = {}) {
  auto store = WeightStore::open(kFolder + name);
  auto values = open_safetensors_file(kFolder + name + "/golden.safetensors");
  CHECK(store.ok() && values.ok());
  auto tower = AudioTower::load(config_of(name), std::make_shared<WeightStore>(std::move(*store)), options);
  CHECK(tower.ok());
  return {std::move(*tower), std::move(*values)};
}

// mel_of() of tests/oracles/omni_audio.py.
std::vector<float> formula_mel(int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>((static_cast<uint32_t>(i) * 2654435761u) >> 24) / 128.0f - 1.0f;
  }
  return out;
}

std::vector<float> encode_formula(const AudioTower& tower, int64_t frames, kernels::Ops& ops) {
  std::vector<float> features;
  const Status status = tower.encode(
      frames, formula_mel(frames * tower.config().mel_bins), ops, [] { return kNotCancelled; }, features);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return features;
}

double worst_error(const std::vector<float>& seen, const std::vector<float>& wanted) {
  double worst = 0, greatest = 0;
  EXPECT_EQ(seen.size(), wanted.size());
  for (std::size_t i = 0; i < std::min(seen.size(), wanted.size()); ++i) {
    EXPECT_TRUE(std::isfinite(seen[i]));
    worst = std::max(worst, std::abs(double{seen[i]} - wanted[i]));
    greatest = std::max(greatest, std::abs(double{wanted[i]}));
  }
  return worst / greatest;
}

class AudioTowerTest : public ::testing::TestWithParam<kernels::Isa> {};

TEST_P(AudioTowerTest, FeaturesAreThoseOfTransformersStoredAndPacked) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  for (const char* name : {"sounds", "windows"}) {
    GoldenTower stored = open_golden_tower(name);
    const GoldenTower packed = open_golden_tower(name, {.pool = &pool, .isa = GetParam()});
    for (int k = 0; k < kLengths; ++k) {
      const int64_t frames = golden_values<int32_t>(stored.values, "frames_", k)[0];
      SCOPED_TRACE(fmt::format("{}, {} frames", name, frames));
      const std::vector<float> seen = encode_formula(*stored.tower, frames, *ops);
      EXPECT_LE(worst_error(seen, golden_values<float>(stored.values, "features_", k)), 1e-4);
      EXPECT_EQ(encode_formula(*packed.tower, frames, *ops), seen);
    }
  }
}

TEST_P(AudioTowerTest, ThreadsChangeNoBit) {
  const GoldenTower golden = open_golden_tower("windows");
  ThreadPool one(1), three(3);
  const auto alone = kernels::make_ops(GetParam(), one), together = kernels::make_ops(GetParam(), three);
  for (const int64_t frames : {5, 250, 937}) {
    EXPECT_EQ(encode_formula(*golden.tower, frames, *alone), encode_formula(*golden.tower, frames, *together));
  }
}

// Of "windows", whose rows are complete blocks; convolutions stay as they are.
TEST_P(AudioTowerTest, QuantizedMatricesStayClose) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  GoldenTower golden = open_golden_tower("windows", {.pool = &pool, .isa = GetParam(), .quantize = DType::kQ8_0});
  for (int k = 0; k < kLengths; ++k) {
    const int64_t frames = golden_values<int32_t>(golden.values, "frames_", k)[0];
    const double error =
        worst_error(encode_formula(*golden.tower, frames, *ops), golden_values<float>(golden.values, "features_", k));
    EXPECT_GT(error, 1e-4) << "nothing was quantized";
    EXPECT_LE(error, 0.06) << frames << " frames";
  }
}

std::vector<kernels::Isa> available_isas() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, AudioTowerTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

TEST(AudioTowerLoad, EndsWhenItIsCancelled) {
  const GoldenTower golden = open_golden_tower("windows");
  ThreadPool pool(1);
  const auto ops = kernels::make_ops(kernels::Isa::kRef, pool);
  const std::vector<float> mel = formula_mel(int64_t{350} * golden.tower->config().mel_bins);
  for (const int limit : {1, 3, 5, 12}) {
    std::vector<float> features;
    int asked = 0;
    const Status status = golden.tower->encode(
        350, mel, *ops, [&] { return ++asked < limit; }, features);
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_EQ(asked, limit);
  }
}

TEST(AudioTowerLoad, WrongTensorsAreRefused) {
  AudioConfig wider = config_of("sounds");
  wider.ffn += 1;
  auto store = WeightStore::open(kFolder + "sounds");
  ASSERT_TRUE(store.ok());
  const auto shared = std::make_shared<WeightStore>(std::move(*store));
  EXPECT_EQ(AudioTower::load(wider, shared, {}).status().code(), StatusCode::kInvalidArgument);
  AudioConfig shorter = config_of("sounds");
  shorter.layers = 1;
  auto again = WeightStore::open(kFolder + "sounds");
  ASSERT_TRUE(again.ok());
  const auto unused = AudioTower::load(shorter, std::make_shared<WeightStore>(std::move(*again)), {});
  EXPECT_EQ(unused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unused.status().message().find("audio_tower.layers.1."), std::string::npos) << unused.status().to_string();
}

TEST(AudioRows, AreThoseOfTransformers) {
  const auto text = read_small_file(kFolder + "audio_rows.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const json golden = json::parse(*text);
  const auto first = golden["first"].get<std::vector<int64_t>>();
  ASSERT_EQ(first.size(), 250u);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(audio_rows(static_cast<int64_t>(i) + 1), first[i]) << i + 1;
  uint64_t hash = 0xCBF29CE484222325ull;
  for (int64_t frames = 1; frames <= 100000; ++frames) {
    const auto rows = static_cast<uint32_t>(audio_rows(frames));
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (rows >> shift & 0xFF)) * 0x100000001B3ull;
  }
  EXPECT_EQ(fmt::format("{:016x}", hash), golden["hash"]);
  EXPECT_EQ(audio_rows(0), 0);
}

}  // namespace
}  // namespace millrace
