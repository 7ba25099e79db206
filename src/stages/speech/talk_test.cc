// The talker as a worker, against Hugging Face transformers (tests/golden/omni/speech): the codes of each frame.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "stages/testing/speech_testing.h"

namespace millrace {
namespace {

using namespace testing;

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

// Three-axis positions where there are pictures, hidden rows of the thinker in place of text.
TEST(Talk, CodesOfPicturesAndAudioAreThoseOfTransformers) {
  const auto worker = talker();
  for (const Spoken& spoken : spoken_media()) EXPECT_EQ(codes_alone(*worker, spoken), spoken.codes);
}

TEST(Talk, WhenRowsOfMediaComeChangesNoCode) {
  const auto worker = talker();
  const auto tick = [&](Emitted& emit) {
    for (int i = 0; i < 20; ++i) worker->tick(0, emit);
  };
  for (const Spoken& spoken : spoken_media()) {
    Emitted early;
    worker->chunk(ReqId{1}, "scheduler", media_chunk(spoken), early);
    Spoken rest = spoken;
    worker->tokens(ReqId{1}, "scheduler", opening(1, rest), early);
    tick(early);
    worker->tokens(ReqId{1}, "scheduler", text(1, spoken.text, true), early);
    worker->start(ReqId{1}, Value(), early);
    run(*worker, early, 1);
    EXPECT_EQ(values_of<int32_t>(early.of[1], kCodesKey), spoken.codes);
    worker->drop(ReqId{1});
    Emitted late;
    send_answer(*worker, 2, spoken, 1, late, [&] { tick(late); });
    run(*worker, late, 1);
    EXPECT_EQ(values_of<int32_t>(late.of[2], kCodesKey), spoken.codes);
    worker->drop(ReqId{2});
  }
}

// An answer that was aborted before its prompt was computed has no rows, and no sound.
TEST(Talk, NoRowsOfMediaNoSound) {
  const auto worker = talker();
  Spoken spoken = spoken_media().front();
  spoken.prompt.push_back(spoken.text.front());  // text of the prompt itself
  Emitted emit;
  worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
  for (int i = 0; i < 20; ++i) worker->tick(0, emit);
  worker->tokens(ReqId{1}, "scheduler", text(1, {}, true), emit);
  worker->start(ReqId{1}, Value(), emit);
  run(*worker, emit, 1);
  EXPECT_EQ(emit.of[1].results.size(), 1u);
  EXPECT_TRUE(emit.of[1].chunks.empty());
}

TEST(Talk, MediaThatFitNothingAreRefused) {
  const auto worker = talker();
  const Spoken good = spoken_media()[1];
  const int64_t width = speech_config().talker.thinker_hidden_size;
  const auto refusal = [&](const Spoken& spoken, Value chunk) {
    Emitted emit;
    worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
    if (emit.of[1].failures.empty()) worker->chunk(ReqId{1}, "scheduler", std::move(chunk), emit);
    worker->drop(ReqId{1});
    return emit.of[1].failures.empty() ? "none" : emit.of[1].failures.front().message();
  };
  EXPECT_NE(refusal(good, Value()).find("without hidden rows"), std::string::npos);
  EXPECT_NE(refusal(good, media_chunk(good.media_rows, width / 2)).find("wanted media_rows: F32"), std::string::npos);
  std::vector<float> few(good.media_rows.begin(), good.media_rows.end() - width);
  EXPECT_NE(refusal(good, media_chunk(few, width)).find("11 hidden rows of media; wanted 12"), std::string::npos);
  Spoken bad = good;
  bad.media[0].rows += 1;
  EXPECT_NE(refusal(bad, media_chunk(good)).find("has 13 rows"), std::string::npos);
  bad.media[0].begin = static_cast<int32_t>(bad.prompt.size()) - 1;
  EXPECT_NE(refusal(bad, media_chunk(good)).find("wanted some inside"), std::string::npos);
  EXPECT_EQ(codes_alone(*worker, good), good.codes);
}

// In a pool for one of them, so that they are retracted.
TEST(Talk, CompanyAndRetractionChangeNoCode) {
  SpeechConfig small = speech_config();
  small.talker.text.max_position_embeddings = 96;
  const auto worker = talker({.page_size = 4, .max_running_requests = 1}, small, [](SchedulerOptions& options) {
    options.max_running_requests = 8;
    options.conservativeness = 0;
  });
  const std::vector<Spoken> all = all_spoken();
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

TEST(Talk, ItShowsWhatItDoes) {
  const auto worker = talker();
  const Spoken spoken = spoken_texts().front();
  Emitted emit;
  worker->tokens(ReqId{1}, "scheduler", opening(1, spoken), emit);
  worker->tokens(ReqId{1}, "scheduler", text(1, spoken.text, false), emit);
  worker->tick(0, emit);
  worker->admin({.id = 7, .action = wire::AdminAction::kShowState}, 0, emit);
  ASSERT_EQ(emit.replies.size(), 1u);
  const Json state = parse_json(emit.replies[0].second.value()).value();
  EXPECT_EQ(state["requests"][0]["id"], 1);
  EXPECT_EQ(state["pages"]["map"].get<std::string>().size(), state["pages"]["total"].get<std::size_t>());
  worker->admin({.id = 8}, 0, emit);
  EXPECT_EQ(emit.replies[1].second.status().code(), StatusCode::kUnsupported);
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

}  // namespace
}  // namespace millrace
