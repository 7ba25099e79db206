// The vocoder against Hugging Face transformers (tests/golden/omni/{vocoder,vocoder_odd}, tests/oracles/
// omni_code2wav.py), and exact streaming.
#include "models/omni/code2wav.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "formats/mapped_file.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

constexpr bool kProceed = true;
constexpr const char* kVocoders[] = {"vocoder", "vocoder_odd"};

std::string vocoder_path(const std::string& name) {
  return std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/" + name;
}

Code2WavConfig vocoder_config(const std::string& name) {
  const auto text = read_small_file(vocoder_path(name) + "/config.json", 1 << 20);
  CHECK(text.ok());
  const auto config = parse_code2wav_config(*text, "config.json");
  CHECK(config.ok());
  return *config;
}

std::shared_ptr<const Code2Wav> open_vocoder(const std::string& name, const LoadOptions& options = {}) {
  auto store = WeightStore::open(vocoder_path(name));
  CHECK(store.ok());
  auto vocoder = Code2Wav::load(vocoder_config(name), std::make_shared<WeightStore>(std::move(*store)), options);
  CHECK(vocoder.ok());
  return *vocoder;
}

// In calls of `sizes` frames, the last size again and again.
std::vector<float> decode_in(const Code2Wav& vocoder, std::span<const int32_t> codes,
                             const std::vector<std::size_t>& sizes, kernels::Ops& ops) {
  const auto quantizers = static_cast<std::size_t>(vocoder.config().quantizers);
  const auto state = vocoder.start();
  std::vector<float> samples;
  std::size_t call = 0;
  for (std::size_t first = 0; first < codes.size();) {
    const std::size_t n = std::min(sizes[std::min(call++, sizes.size() - 1)] * quantizers, codes.size() - first);
    const Status status = vocoder.decode(
        codes.subspan(first, n), *state, ops, [] { return kProceed; }, samples);
    EXPECT_TRUE(status.ok()) << status.to_string();
    first += n;
    const auto frames = static_cast<int64_t>(first / quantizers);
    EXPECT_EQ(state->frames(), frames);
    EXPECT_EQ(static_cast<int64_t>(samples.size()), vocoder.config().samples(frames));
  }
  return samples;
}

// Decibels.
double signal_to_noise(const std::vector<float>& seen, const std::vector<float>& wanted) {
  EXPECT_EQ(seen.size(), wanted.size());
  double signal = 0, noise = 1e-30;
  for (std::size_t i = 0; i < std::min(seen.size(), wanted.size()); ++i) {
    EXPECT_TRUE(std::isfinite(seen[i]));
    signal += double{wanted[i]} * wanted[i];
    noise += std::pow(double{seen[i]} - wanted[i], 2);
  }
  return 10 * std::log10(signal / noise);
}

class Code2WavTest : public ::testing::TestWithParam<kernels::Isa> {};

TEST_P(Code2WavTest, SoundIsThatOfTransformersStoredAndPacked) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  for (const char* name : kVocoders) {
    const auto stored = open_vocoder(name), packed = open_vocoder(name, {.pool = &pool, .isa = GetParam()});
    auto golden = open_safetensors_file(vocoder_path(name) + "/golden.safetensors");
    ASSERT_TRUE(golden.ok());
    int k = 0;
    for (; golden->contains("codes_" + std::to_string(k)); ++k) {
      const auto codes = golden_values<int32_t>(*golden, "codes_", k);
      const std::vector<float> seen = decode_in(*stored, codes, {codes.size()}, *ops);
      EXPECT_GT(signal_to_noise(seen, golden_values<float>(*golden, "samples_", k)), 80) << name << " " << k;
      EXPECT_EQ(decode_in(*packed, codes, {codes.size()}, *ops), seen) << name << " " << k;
    }
    EXPECT_GE(k, 2);
  }
}

std::vector<int32_t> random_codes(const Code2WavConfig& config, int64_t frames, uint64_t seed) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < frames * config.quantizers; ++i) {
    out.push_back(
        static_cast<int32_t>(philox(seed, static_cast<uint64_t>(i))[0] % static_cast<uint32_t>(config.codebook_size)));
  }
  return out;
}

// Beyond the ring of the transformer's keys several times.
TEST_P(Code2WavTest, StreamedIsAllAtOnceBitForBit) {
  ThreadPool one(1), three(3);
  const auto alone = kernels::make_ops(GetParam(), one), together = kernels::make_ops(GetParam(), three);
  for (const char* name : kVocoders) {
    const auto vocoder = open_vocoder(name);
    const auto codes = random_codes(vocoder->config(), name == std::string("vocoder") ? 75 : 310, 7);
    const std::vector<float> wanted = decode_in(*vocoder, codes, {codes.size()}, *together);
    for (const auto& sizes : {std::vector<std::size_t>{1}, {4, 1, 2, 7}, {1, 25, 3}, {8}, {13}}) {
      EXPECT_EQ(decode_in(*vocoder, codes, sizes, *alone), wanted) << name << " " << sizes[0];
    }
  }
}

std::vector<kernels::Isa> vocoder_isas() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, Code2WavTest, ::testing::ValuesIn(vocoder_isas()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

TEST(Code2WavLoad, CountsSamples) {
  const Code2WavConfig config = vocoder_config("vocoder");
  EXPECT_EQ(config.samples_per_frame(), 1920);
  EXPECT_EQ(config.samples(0), 0);
  EXPECT_EQ(config.samples(1), 1920 - 555);
  EXPECT_EQ(config.samples(300), 300 * 1920 - 555);
}

// Sounds do not meet: two states of one vocoder by turns.
TEST(Code2WavLoad, SoundsAreApart) {
  ThreadPool pool(1);
  const auto ops = kernels::make_ops(kernels::Isa::kGeneric, pool);
  const auto vocoder = open_vocoder("vocoder_odd");
  const auto quantizers = static_cast<std::size_t>(vocoder->config().quantizers);
  const std::vector<int32_t> codes[] = {random_codes(vocoder->config(), 12, 1), random_codes(vocoder->config(), 12, 2)};
  const std::unique_ptr<VocoderState> states[] = {vocoder->start(), vocoder->start()};
  std::vector<float> samples[2];
  for (std::size_t frame = 0; frame < 12; ++frame) {
    for (const int i : {0, 1}) {
      const std::span<const int32_t> all = codes[i];
      ASSERT_TRUE(
          vocoder
              ->decode(
                  all.subspan(frame * quantizers, quantizers), *states[i], *ops, [] { return kProceed; }, samples[i])
              .ok());
    }
  }
  for (const int i : {0, 1}) EXPECT_EQ(samples[i], decode_in(*vocoder, codes[i], {12}, *ops));
}

TEST(Code2WavLoad, EndsWhenItIsCancelled) {
  ThreadPool pool(1);
  const auto ops = kernels::make_ops(kernels::Isa::kGeneric, pool);
  const auto vocoder = open_vocoder("vocoder_odd");
  for (const int limit : {1, 2, 4, 12}) {
    const auto state = vocoder->start();
    std::vector<float> samples;
    int asked = 0;
    const Status status = vocoder->decode(
        random_codes(vocoder->config(), 20, 1), *state, *ops, [&] { return ++asked < limit; }, samples);
    EXPECT_EQ(status.code(), StatusCode::kCancelled);
    EXPECT_EQ(asked, limit);
  }
}

TEST(Code2WavLoad, WrongTensorsAreRefused) {
  const auto store = [] {
    auto opened = WeightStore::open(vocoder_path("vocoder"));
    CHECK(opened.ok());
    return std::make_shared<WeightStore>(std::move(*opened));
  };
  Code2WavConfig shorter = vocoder_config("vocoder");
  shorter.layers = 1;
  const auto unused = Code2Wav::load(shorter, store(), {});
  EXPECT_EQ(unused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unused.status().message().find("code2wav.pre_transformer.layers.1."), std::string::npos);
  Code2WavConfig wider = vocoder_config("vocoder");
  wider.upsample_rates[1] = 6;
  EXPECT_EQ(Code2Wav::load(wider, store(), {}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
