// Prompts with sounds and pictures through the towers and the thinker of Qwen3-Omni: Hugging Face's positions, logits
// and greedy ids (tests/golden/omni/thinker, tests/oracles/omni_thinker.py), and the same bits whatever the chunks and
// the company. Its directory holds tensors of a talker and of a code2wav, which nothing here reads.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "formats/testing/test_files.h"
#include "kv/media_ids.h"
#include "models/omni/audio_tower.h"
#include "models/vision/mrope.h"
#include "models/vision/vision_tower.h"
#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kOmniCases = 6;
constexpr int64_t kFormulaStride = 1000003;  // from medium to medium of a prompt
constexpr bool kUncancelled = true;
const std::string kThinker = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/thinker";

// values_of() of tests/oracles/omni_thinker.py.
std::vector<float> formula_values(int64_t number, int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto element = static_cast<uint32_t>(static_cast<int64_t>(i) + number * kFormulaStride);
    out[i] = static_cast<float>((element * 2654435761u) >> 24) / 128.0f - 1.0f;
  }
  return out;
}

struct Thinker {
  ModelConfig config;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const VisionTower> vision;
  std::shared_ptr<const AudioTower> audio;
};

Thinker open_thinker(const std::string& path, const LoadOptions& options) {
  auto dir = open_model_dir(path);
  CHECK(dir.ok());
  const auto store = [&] {
    auto opened = WeightStore::open(path);
    CHECK(opened.ok());
    return std::make_shared<WeightStore>(std::move(*opened));
  };
  auto model = load_model(dir->config, store(), 1, options);
  auto vision = VisionTower::load(*dir->config.vision, store(), options);
  auto audio = AudioTower::load(*dir->config.audio, store(), options);
  CHECK(model.ok() && vision.ok() && audio.ok());
  return {dir->config, std::move(*model), std::move(*vision), std::move(*audio)};
}

struct OmniCase {
  TestRequest request;
  std::vector<int32_t> positions;  // [3, rows]
  float delta = 0;
  std::vector<int32_t> greedy;
  std::vector<float> last_logits;  // of the prompt
};

MediaFeatures picture_features(const Thinker& thinker, VisionGrid grid, int64_t number, kernels::Ops& ops) {
  const int64_t width = thinker.vision->config().patch_values();
  const std::vector<float> patches = formula_values(number, grid.patches() * width);
  auto values = std::make_shared<std::vector<float>>();
  const Status status = thinker.vision->encode(
      grid, kernels::ConstRows(patches.data(), grid.patches(), width), ops, [] { return kUncancelled; }, *values);
  EXPECT_TRUE(status.ok()) << status.to_string();
  const VisionConfig& config = thinker.vision->config();
  return {static_cast<int32_t>(grid.patches() / config.merged_patches()), config.feature_sets(), config.out_hidden_size,
          values};
}

MediaFeatures sound_features(const Thinker& thinker, int64_t frames, int64_t number, kernels::Ops& ops) {
  auto values = std::make_shared<std::vector<float>>();
  const Status status = thinker.audio->encode(
      frames, formula_values(number, frames * thinker.audio->config().mel_bins), ops, [] { return kUncancelled; },
      *values);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return {static_cast<int32_t>(audio_rows(frames)), 1, thinker.audio->config().output_dim, values};
}

std::vector<int32_t> ids_of(WeightStore& golden, const std::string& name, int k) {
  return golden.contains(name + std::to_string(k)) ? golden_values<int32_t>(golden, name, k) : std::vector<int32_t>{};
}

// What stands in the rows of placeholders becomes features of the towers.
OmniCase read_case(WeightStore& golden, const Thinker& thinker, int k, kernels::Ops& ops) {
  OmniCase out;
  std::vector<int32_t>& prompt = out.request.prompt = ids_of(golden, "prompt_", k);
  out.greedy = ids_of(golden, "greedy_", k);
  out.positions = ids_of(golden, "positions_", k);
  out.delta = static_cast<float>(ids_of(golden, "delta_", k)[0]);
  out.request.new_tokens = static_cast<int>(out.greedy.size());
  out.request.sampling.temperature = 0;
  out.last_logits = golden_values<float>(golden, "logits_", k);
  const std::vector<int32_t> frames = ids_of(golden, "frames_", k), grids = ids_of(golden, "grids_", k);

  auto input = std::make_shared<PromptInput>();
  std::vector<PictureRows> pictures;
  std::size_t sounds = 0;
  for (std::size_t at = 0; at < prompt.size(); ++at) {
    const auto begin = static_cast<int32_t>(at);
    MediaFeatures features;
    if (prompt[at] == thinker.config.vision->image_token_id) {
      const std::size_t i = 3 * pictures.size();
      const VisionGrid grid{grids[i], grids[i + 1], grids[i + 2]};
      features = picture_features(thinker, grid, static_cast<int64_t>(pictures.size()), ops);
      pictures.push_back({begin, grid.height / 2, grid.width / 2});
    } else if (prompt[at] == thinker.config.audio->audio_token_id) {
      features = sound_features(thinker, frames[sounds], static_cast<int64_t>(sounds), ops);
      ++sounds;
    } else {
      continue;
    }
    std::fill_n(prompt.begin() + begin, features.rows, kFirstMediaId - static_cast<int32_t>(at));
    input->spans.push_back({begin, std::to_string(at), std::move(features)});
  }
  EXPECT_EQ(sounds, frames.size());
  EXPECT_EQ(3 * pictures.size(), grids.size());
  MropePositions positions = mrope_positions(static_cast<int32_t>(prompt.size()), pictures);
  input->positions = std::move(positions.rows);
  input->delta = positions.delta;
  if (!input->spans.empty()) out.request.input = std::move(input);
  return out;
}

std::vector<OmniCase> read_cases(const Thinker& thinker, kernels::Isa isa) {
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(isa, pool);
  auto golden = open_safetensors_file(kThinker + "/golden.safetensors");
  CHECK(golden.ok());
  std::vector<OmniCase> out;
  for (int k = 0; k < kOmniCases; ++k) out.push_back(read_case(*golden, thinker, k, *ops));
  return out;
}

std::vector<TestRequest> requests_of(const std::vector<OmniCase>& cases) {
  std::vector<TestRequest> out;
  for (const OmniCase& one : cases) out.push_back(one.request);
  return out;
}

std::vector<TestRequest> run_all(const Thinker& thinker, TestPlan plan, std::vector<TestRequest> requests) {
  TestScheduler scheduler(thinker.model, plan, std::move(requests));
  const Status status = scheduler.run();
  EXPECT_TRUE(status.ok()) << status.to_string();
  return scheduler.requests();
}

void expect_golden(const std::vector<TestRequest>& answers, const std::vector<OmniCase>& cases) {
  for (std::size_t k = 0; k < cases.size(); ++k) {
    SCOPED_TRACE(fmt::format("case {}", k));
    EXPECT_EQ(answers[k].tokens, cases[k].greedy);
    const std::vector<float>&seen = answers[k].logits.front(), &wanted = cases[k].last_logits;
    ASSERT_EQ(seen.size(), wanted.size());
    const auto [least, greatest] = std::minmax_element(wanted.begin(), wanted.end());
    double worst = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::abs(double{seen[i]} - wanted[i]));
    EXPECT_LE(worst, 1e-4 * (*greatest - *least));
  }
}

class OmniPromptsTest : public ::testing::TestWithParam<kernels::Isa> {};

TEST_P(OmniPromptsTest, AnswersAreThoseOfTransformers) {
  const Thinker thinker = open_thinker(kThinker, {});
  const std::vector<OmniCase> cases = read_cases(thinker, GetParam());
  expect_golden(run_all(thinker, {.isa = GetParam()}, requests_of(cases)), cases);
}

TEST_P(OmniPromptsTest, PackedWeightsChunksAndCompanyChangeNoBit) {
  ThreadPool pool(2);
  const Thinker stored = open_thinker(kThinker, {});
  const Thinker packed = open_thinker(kThinker, {.pool = &pool, .isa = GetParam()});
  const auto alone = run_all(stored, {.isa = GetParam()}, requests_of(read_cases(stored, GetParam())));
  const std::vector<TestRequest> all = requests_of(read_cases(packed, GetParam()));
  for (const int chunk : {1, 7, 512}) {
    const TestPlan plan{2, 4, 9, 4, chunk, 5, GetParam()};  // rows of at most 9, in batches of 4, pages of 4
    const auto together = run_all(packed, plan, all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << "chunk " << chunk << " request " << i;
      EXPECT_EQ(together[i].logits, alone[i].logits) << "chunk " << chunk << " request " << i;
    }
  }
}

std::vector<kernels::Isa> isas_of_this_cpu() {
  std::vector<kernels::Isa> out;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) out.push_back(isa);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Isas, OmniPromptsTest, ::testing::ValuesIn(isas_of_this_cpu()),
                         [](const auto& info) { return std::string(kernels::isa_name(info.param)); });

TEST(OmniPrompts, PositionsAreThoseOfTransformers) {
  const Thinker thinker = open_thinker(kThinker, {});
  for (const OmniCase& one : read_cases(thinker, kernels::Isa::kGeneric)) {
    const std::size_t rows = one.request.prompt.size();
    for (std::size_t i = 0; i < 3 * rows; ++i) {
      const auto row = static_cast<int32_t>(i % rows);
      const float seen = one.request.input ? one.request.input->position(row)[i / rows] : static_cast<float>(row);
      EXPECT_EQ(seen, static_cast<float>(one.positions[i]));
    }
    EXPECT_EQ(one.request.input ? one.request.input->delta : 0, one.delta);
  }
}

// A capture of all rows of a prompt, behind `layer` layers.
std::shared_ptr<const RowCapture> capture_all(const TestRequest& request, const ModelConfig& config, int layer) {
  const auto rows = static_cast<int32_t>(request.prompt.size());
  auto values = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows * config.hidden_size));
  return std::make_shared<RowCapture>(
      RowCapture{.layer = layer, .hidden_size = config.hidden_size, .spans = {{0, rows, std::move(values)}}});
}

// Behind all layers, what is captured of a prompt's last row becomes the logits of its first token; behind the others,
// chunks and company change no bit of it.
TEST_P(OmniPromptsTest, CapturedRowsAreThoseThatPassTheLayers) {
  const Thinker thinker = open_thinker(kThinker, {});
  std::vector<TestRequest> requests = requests_of(read_cases(thinker, GetParam()));
  ThreadPool pool(2);
  const auto ops = kernels::make_ops(GetParam(), pool);
  for (int layer = 1; layer <= thinker.config.layers; ++layer) {
    for (TestRequest& request : requests) request.capture = capture_all(request, thinker.config, layer);
    const auto alone = run_all(thinker, {.isa = GetParam()}, requests);
    std::vector<TestRequest> again = requests;
    for (TestRequest& request : again) request.capture = capture_all(request, thinker.config, layer);
    run_all(thinker, {2, 4, 9, 4, 7, 5, GetParam()}, again);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const std::vector<float>& values = *requests[i].capture->spans[0].values;
      EXPECT_EQ(values, *again[i].capture->spans[0].values);
      if (layer < thinker.config.layers) continue;
      std::vector<float> logits(static_cast<std::size_t>(thinker.config.vocab_size));
      const float* last = requests[i].capture->row(static_cast<int32_t>(requests[i].prompt.size()) - 1);
      thinker.model->head({last, 1, thinker.config.hidden_size}, {logits.data(), 1, thinker.config.vocab_size}, *ops);
      EXPECT_EQ(logits, alone[i].logits.front());
    }
  }
}

TEST(OmniPrompts, ACaptureBehindNoLayerIsRefused) {
  const Thinker thinker = open_thinker(kThinker, {});
  TestRequest request = read_cases(thinker, kernels::Isa::kGeneric)[0].request;
  for (const int layer : {0, thinker.config.layers + 1}) {
    request.capture = capture_all(request, thinker.config, layer);
    TestScheduler scheduler(thinker.model, {}, {request});
    EXPECT_NE(scheduler.run().message().find(fmt::format("rows behind {} layers", layer)), std::string::npos);
  }
}

// The directory of a thinker alone: no thinker_config, no "thinker." in the names.
TEST(OmniPrompts, AThinkerAloneGivesTheSameBits) {
  const std::string file = test_files::read_file(kThinker + "/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const json stored = json::parse(file.substr(8, length));
  json header = json::object();
  for (const auto& [name, entry] : stored.items()) {
    constexpr std::string_view kPrefix = "thinker.";
    header[name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name] = entry;
  }
  test_files::TempDir dir;
  dir.write("model.safetensors", test_files::pack(header.dump(), file.substr(8 + length)));
  json config = json::parse(test_files::read_file(kThinker + "/config.json"))["thinker_config"];
  config["architectures"] = {"Qwen3OmniMoeThinkerForConditionalGeneration"};
  dir.write("config.json", config.dump());
  const auto isa = kernels::resolve_isa();
  ASSERT_TRUE(isa.ok());
  const Thinker complete = open_thinker(kThinker, {}), alone = open_thinker(dir.path(), {});
  EXPECT_TRUE(alone.config.eos_token_ids.empty());
  EXPECT_EQ(complete.config.eos_token_ids, std::vector<int32_t>{3071});
  const auto wanted = run_all(complete, {.isa = *isa}, requests_of(read_cases(complete, *isa)));
  const auto seen = run_all(alone, {.isa = *isa}, requests_of(read_cases(alone, *isa)));
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(seen[i].logits, wanted[i].logits);
}

// The rows of a picture need the additions of deepstack; those of a sound may not have other counts than one.
TEST(OmniPrompts, OtherCountsOfFeatureSetsAreRefused) {
  const Thinker thinker = open_thinker(kThinker, {});
  const std::vector<OmniCase> cases = read_cases(thinker, kernels::Isa::kGeneric);
  auto input = std::make_shared<PromptInput>(*cases[1].request.input);
  input->spans[0].features.sets = 2;
  std::vector<TestRequest> wrong = {cases[1].request};
  wrong[0].input = input;
  TestScheduler scheduler(thinker.model, {}, wrong);
  const Status status = scheduler.run();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "step 1, request 0: features of 2 x 32; wanted 3 x 32");
}

}  // namespace
}  // namespace millrace
