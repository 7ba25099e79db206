// The talker and the vocoder as workers, against Hugging Face transformers (tests/golden/omni/speech,
// tests/oracles/omni_speech.py): the codes of each frame, and the sound.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/mapped_file.h"
#include "models/testing/model_testing.h"
#include "stages/generating/token_values.h"
#include "stages/speech/speech_workers.h"
#include "stages/testing/said_emit.h"

namespace millrace {
namespace {

using Emitted = testing::SaidEmit;

const std::string kSpeech = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/speech";
constexpr int kMaxTicks = 100'000;

// One of spoken.json.
struct Spoken {
  std::vector<int32_t> prompt, text;
  wire::SpeechRequest request;
  std::vector<int32_t> codes;  // [frames, groups]
  std::vector<float> samples;
};

// Those of text alone. transformers never speaks the last id that its thinker samples, nor the last frame before a
// limit.
std::vector<Spoken> spoken_texts() {
  const auto file = read_small_file(kSpeech + "/spoken.json", 1 << 20);
  CHECK(file.ok());
  auto golden = open_safetensors_file(kSpeech + "/golden.safetensors");
  CHECK(golden.ok());
  std::vector<Spoken> out;
  int number = -1;
  for (const auto& one : nlohmann::json::parse(*file)) {
    if (golden->find("media_" + std::to_string(++number)) != nullptr) continue;
    Spoken spoken{.prompt = one["prompt"], .text = one["greedy"]};
    spoken.text.pop_back();
    spoken.request.voice = one["voice"];
    spoken.request.temperature = 0;
    spoken.request.repetition_penalty = one["repetition_penalty"];
    if (!one["codec_eos"]) spoken.request.max_frames = one["talker_max_new_tokens"].get<int>() - 1;
    for (const auto& frame : one["codes"]) spoken.codes.insert(spoken.codes.end(), frame.begin(), frame.end());
    spoken.samples = golden_values<float>(*golden, "samples_", number);
    out.push_back(std::move(spoken));
  }
  CHECK(out.size() >= 4);
  return out;
}

SpeechConfig speech_config() {
  const auto config = read_speech_config({.model = kSpeech});
  CHECK(config.ok() && *config);
  return **config;
}

const LoadProgress kNoProgress = [](const std::string&, double) {};

std::unique_ptr<Worker> talker(ModelOptions options = {}, SpeechConfig config = speech_config(),
                               const std::function<void(SchedulerOptions&)>& change = nullptr) {
  options.model = kSpeech;
  options.threads = 1;
  TalkParts parts = talk_parts(options, config);
  if (change) change(parts.options);
  auto worker = make_talk_worker(std::move(parts));
  const Status status = worker->load(kNoProgress);
  CHECK(status.ok());
  return worker;
}

std::unique_ptr<Worker> vocoder() {
  auto worker = make_vocode_worker(load_vocoder({.model = kSpeech, .threads = 1}, speech_config()));
  const Status status = worker->load(kNoProgress);
  CHECK(status.ok());
  return worker;
}

template <typename T>
std::vector<T> values_of(const auto& output, const char* key) {
  std::vector<T> out;
  for (const Value& chunk : output.chunks) {
    const auto values = chunk.find(key)->get<SharedTensor>()->view().as<T>();
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

wire::TokenDelta opening(uint64_t id, const Spoken& spoken) {
  wire::TokenDelta delta{.id = ReqId{id}};
  delta.start = wire::DetokenizeStart{};
  delta.speech = wire::SpeechStart{spoken.request, spoken.prompt};
  return delta;
}

wire::TokenDelta text(uint64_t id, std::vector<int32_t> ids, bool last) {
  wire::TokenDelta delta{.id = ReqId{id}, .tokens = std::move(ids)};
  if (last) delta.finish = wire::Finish{};
  return delta;
}

// The complete answer of the thinker, `each` ids a delta; `between` after each.
void send_answer(
    Worker& worker, uint64_t id, const Spoken& spoken, std::size_t each, Emitted& emit,
    const std::function<void()>& between = [] {}) {
  worker.tokens(ReqId{id}, "scheduler", opening(id, spoken), emit);
  between();
  for (std::size_t at = 0; at < spoken.text.size(); at += each) {
    const auto begin = spoken.text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = spoken.text.begin() + static_cast<std::ptrdiff_t>(std::min(at + each, spoken.text.size()));
    worker.tokens(ReqId{id}, "scheduler", text(id, {begin, end}, end == spoken.text.end()), emit);
    between();
  }
  worker.start(ReqId{id}, Value(), emit);
}

// Until `ends` requests have ended.
void run(Worker& worker, Emitted& emit, std::size_t ends) {
  for (int i = 0; i < kMaxTicks; ++i) {
    std::size_t ended = 0;
    for (const auto& [id, output] : emit.of) ended += output.results.size() + output.failures.size();
    if (ended >= ends) return;
    worker.tick(0, emit);
  }
  ADD_FAILURE() << "no end";
}

std::vector<int32_t> codes_alone(Worker& worker, const Spoken& spoken) {
  Emitted emit;
  send_answer(worker, 1, spoken, 1000, emit);
  run(worker, emit, 1);
  worker.drop(ReqId{1});
  EXPECT_EQ(emit.of[1].failures.size(), 0u);
  return values_of<int32_t>(emit.of[1], kCodesKey);
}

// A server of a pipeline file has no model on its command line; --speech off turns speech off.
TEST(SpeechConfig, NoModelAndOffAreSilent) {
  for (const ModelOptions& options : {ModelOptions{}, ModelOptions{.model = kSpeech, .speech = "off"}}) {
    const auto config = read_speech_config(options);
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_FALSE(config->has_value());
  }
}

TEST(Talk, CodesAreThoseOfTransformers) {
  const auto worker = talker();
  for (const Spoken& spoken : spoken_texts()) EXPECT_EQ(codes_alone(*worker, spoken), spoken.codes);
}

// The text comes id by id, and the talker follows as far as it can.
TEST(Talk, WhenTheTextComesChangesNoCode) {
  const auto worker = talker();
  for (const Spoken& spoken : spoken_texts()) {
    Emitted emit;
    send_answer(*worker, 1, spoken, 1, emit, [&] {
      for (int i = 0; i < 20; ++i) worker->tick(0, emit);
    });
    EXPECT_GT(emit.of[1].chunks.size(), 1u) << "it speaks before the text has ended";
    run(*worker, emit, 1);
    EXPECT_EQ(values_of<int32_t>(emit.of[1], kCodesKey), spoken.codes);
    worker->drop(ReqId{1});
  }
}

// In a pool for one of them, so that they are retracted.
TEST(Talk, CompanyAndRetractionChangeNoCode) {
  SpeechConfig small = speech_config();
  small.talker.text.max_position_embeddings = 80;
  const auto worker = talker({.page_size = 4, .max_running_requests = 1}, small, [](SchedulerOptions& options) {
    options.max_running_requests = 8;
    options.conservativeness = 0;
  });
  const std::vector<Spoken> all = spoken_texts();
  Emitted emit;
  for (std::size_t i = 0; i < all.size(); ++i)
    send_answer(*worker, i + 1, all[i], 2, emit, [&] { worker->tick(0, emit); });
  run(*worker, emit, all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(values_of<int32_t>(emit.of[i + 1], kCodesKey), all[i].codes) << i;
  }
  wire::StageStatus status;
  worker->describe(status);
  const auto retractions = std::ranges::find(status.metrics, "talker_retractions_total", &wire::Metric::name);
  EXPECT_GT(retractions->value, 0);
}

TEST(Talk, ASlowReceiverGetsTheSameCodesLater) {
  const auto worker = talker();
  const Spoken spoken = spoken_texts().front();
  Emitted emit;
  emit.full = {1};
  send_answer(*worker, 1, spoken, 1000, emit);
  for (int i = 0; i < 200; ++i) worker->tick(0, emit);
  EXPECT_TRUE(emit.of[1].chunks.empty());
  emit.full.clear();
  run(*worker, emit, 1);
  EXPECT_EQ(values_of<int32_t>(emit.of[1], kCodesKey), spoken.codes);
}

// Drawn codes depend on the seed alone, in company too.
TEST(Talk, SeededDrawsRepeat) {
  const auto worker = talker();
  std::vector<Spoken> all = spoken_texts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].request = {.voice = "ethan", .seed = 7 * i + 1, .max_frames = 12};
  }
  Emitted emit;
  for (std::size_t i = 0; i < all.size(); ++i) send_answer(*worker, i + 1, all[i], 1, emit);
  run(*worker, emit, all.size());
  for (std::size_t i = 0; i < all.size(); ++i) worker->drop(ReqId{i + 1});
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(codes_alone(*worker, all[i]), values_of<int32_t>(emit.of[i + 1], kCodesKey)) << i;
    Spoken other = all[i];
    other.request.seed += 1000;
    EXPECT_NE(codes_alone(*worker, other), values_of<int32_t>(emit.of[i + 1], kCodesKey)) << i;
  }
}

TEST(Talk, AnEmptyAnswerIsNoSound) {
  const auto worker = talker();
  Spoken spoken = spoken_texts().front();
  Emitted emit;
  worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
  worker->tokens(ReqId{1}, "scheduler", text(1, {}, true), emit);
  worker->start(ReqId{1}, Value(), emit);
  run(*worker, emit, 1);
  EXPECT_EQ(emit.of[1].results.size(), 1u);
  EXPECT_TRUE(emit.of[1].chunks.empty());
}

// The text that stands in the prompt already is the answer's beginning.
TEST(Talk, TextOfThePromptIsSpoken) {
  const auto worker = talker();
  for (Spoken spoken : spoken_texts()) {
    spoken.prompt.insert(spoken.prompt.end(), spoken.text.begin(), spoken.text.end());
    Emitted emit;
    worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
    worker->tokens(ReqId{1}, "scheduler", text(1, {}, true), emit);
    worker->start(ReqId{1}, Value(), emit);
    run(*worker, emit, 1);
    EXPECT_EQ(values_of<int32_t>(emit.of[1], kCodesKey), spoken.codes);
    worker->drop(ReqId{1});
  }
}

TEST(Talk, RefusalsNameWhatIsWanted) {
  const auto worker = talker();
  const Spoken good = spoken_texts().front();
  const auto refusal = [&](const Spoken& spoken) {
    Emitted emit;
    worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
    worker->drop(ReqId{1});
    return emit.of[1].failures.empty() ? "none" : emit.of[1].failures.front().message();
  };
  Spoken bad = good;
  bad.request.voice = "unknown";
  EXPECT_NE(refusal(bad).find("the voice is 'unknown'"), std::string::npos);
  bad = good;
  bad.prompt = {1, 2, 3};
  EXPECT_NE(refusal(bad).find("does not end with a turn of the assistant"), std::string::npos);
  bad = good;
  bad.prompt[1] = 5;
  EXPECT_NE(refusal(bad).find("role id 5"), std::string::npos);
  Emitted emit;
  worker->tokens(ReqId{2}, "scheduler", text(2, {1}, false), emit);
  EXPECT_EQ(emit.of[2].failures.size(), 1u) << "a request that is not to be spoken";
  EXPECT_EQ(codes_alone(*worker, good), good.codes);
}

// Dropped at every moment, and what comes after is right.
TEST(Talk, DroppedRequestsLeaveNothing) {
  const auto worker = talker();
  const Spoken spoken = spoken_texts().front();
  for (int moment = 0; moment < 40; ++moment) {
    Emitted emit;
    worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
    if (moment > 2) worker->tokens(ReqId{1}, "scheduler", text(1, spoken.text, moment > 20), emit);
    for (int i = 0; i < moment; ++i) worker->tick(0, emit);
    worker->drop(ReqId{1});
  }
  EXPECT_EQ(codes_alone(*worker, spoken), spoken.codes);
  wire::StageStatus status;
  worker->describe(status);
  EXPECT_EQ(status.running + status.waiting, 0);
}

Value codes_chunk(const std::vector<int32_t>& codes, int64_t groups) {
  SharedTensor tensor = ids_tensor(codes);
  tensor.shape = {static_cast<int64_t>(codes.size()) / groups, groups};
  Value chunk;
  chunk.set(kCodesKey, std::move(tensor));
  return chunk;
}

// `each` codes a chunk.
std::vector<float> sound_of(Worker& worker, const std::vector<int32_t>& codes, std::size_t each) {
  const int64_t groups = speech_config().vocoder.quantizers;
  Emitted emit;
  for (std::size_t at = 0; at < codes.size(); at += each) {
    const auto begin = codes.begin() + static_cast<std::ptrdiff_t>(at);
    worker.chunk(ReqId{1}, "talker", codes_chunk({begin, begin + static_cast<std::ptrdiff_t>(each)}, groups), emit);
    worker.tick(0, emit);
  }
  worker.start(ReqId{1}, Value(), emit);
  run(worker, emit, 1);
  worker.drop(ReqId{1});
  for (const auto& address : emit.of[1].addresses) EXPECT_EQ(address, std::pair(std::string(), std::string("audio")));
  return values_of<float>(emit.of[1], kSamplesKey);
}

TEST(Vocode, TheSoundIsThatOfTransformersHoweverItsFramesCome) {
  const auto worker = vocoder();
  const auto groups = static_cast<std::size_t>(speech_config().vocoder.quantizers);
  for (const Spoken& spoken : spoken_texts()) {
    const std::vector<float> seen = sound_of(*worker, spoken.codes, groups);
    ASSERT_EQ(seen.size(), spoken.samples.size());
    double signal = 0, noise = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      signal += double{spoken.samples[i]} * spoken.samples[i];
      noise += std::pow(double{seen[i]} - spoken.samples[i], 2);
    }
    EXPECT_GT(10 * std::log10(signal / noise), 40);
    EXPECT_EQ(sound_of(*worker, spoken.codes, spoken.codes.size()), seen);
  }
}

TEST(Vocode, CodesThatAreNoneAreRefused) {
  const auto worker = vocoder();
  const int64_t groups = speech_config().vocoder.quantizers;
  const auto refusal = [&](Value chunk) {
    Emitted emit;
    worker->chunk(ReqId{1}, "talker", std::move(chunk), emit);
    worker->drop(ReqId{1});
    return emit.of[1].failures.empty() ? "none" : emit.of[1].failures.front().message();
  };
  EXPECT_NE(refusal(Value()).find("a chunk without codes"), std::string::npos);
  EXPECT_NE(refusal(codes_chunk({1, 2}, 2)).find("wanted I32 [frames, 4]"), std::string::npos);
  EXPECT_NE(refusal(codes_chunk({1, 2, 3, 100000}, groups)).find("the code 100000"), std::string::npos);
  EXPECT_NE(refusal(codes_chunk({1, -2, 3, 4}, groups)).find("the code -2"), std::string::npos);
}

// Each gets its sound, and the one that was given the least comes next.
TEST(Vocode, SoundsTogetherAreThoseAlone) {
  const auto worker = vocoder();
  const std::vector<Spoken> all = spoken_texts();
  Emitted emit;
  for (std::size_t i = 0; i < all.size(); ++i) {
    worker->chunk(ReqId{i + 1}, "talker", codes_chunk(all[i].codes, speech_config().vocoder.quantizers), emit);
    worker->start(ReqId{i + 1}, Value(), emit);
  }
  for (std::size_t i = 0; i < all.size(); ++i) worker->tick(0, emit);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(emit.of[i + 1].chunks.size(), 1u) << "the first frame of each";
  run(*worker, emit, all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<float> together = values_of<float>(emit.of[i + 1], kSamplesKey);
    worker->drop(ReqId{i + 1});
    EXPECT_EQ(together, sound_of(*worker, all[i].codes, all[i].codes.size()));
  }
}

TEST(Vocode, ASlowReceiverHoldsNoOtherUp) {
  const auto worker = vocoder();
  const Spoken spoken = spoken_texts().front();
  Emitted emit;
  emit.full = {1};
  for (uint64_t id = 1; id <= 2; ++id) {
    worker->chunk(ReqId{id}, "talker", codes_chunk(spoken.codes, speech_config().vocoder.quantizers), emit);
    worker->start(ReqId{id}, Value(), emit);
  }
  run(*worker, emit, 1);
  EXPECT_EQ(emit.of[2].results.size(), 1u);
  EXPECT_TRUE(emit.of[1].chunks.empty());
  emit.full.clear();
  run(*worker, emit, 2);
  EXPECT_EQ(values_of<float>(emit.of[1], kSamplesKey), values_of<float>(emit.of[2], kSamplesKey));
}

}  // namespace
}  // namespace millrace
