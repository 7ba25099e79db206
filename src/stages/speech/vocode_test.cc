// The vocoder as a worker, against Hugging Face transformers (tests/golden/omni/speech): the samples of a sound.
#include <gtest/gtest.h>

#include <cmath>

#include "stages/testing/speech_testing.h"

namespace millrace {
namespace {

using namespace testing;

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
  worker.chunks_done(ReqId{1}, "talker", emit);
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

// Codes of many frames come by a relay; the talker's result, which does not, may be there before them.
TEST(Vocode, CodesBehindTheTalkersResultAreDecoded) {
  const auto worker = vocoder();
  const std::vector<int32_t> codes = spoken_texts().front().codes;
  const std::vector<float> wanted = sound_of(*worker, codes, codes.size());
  const int64_t groups = speech_config().vocoder.quantizers;
  const auto half = codes.begin() + static_cast<std::ptrdiff_t>(codes.size()) / 2 / groups * groups;
  Emitted emit;
  worker->chunk(ReqId{1}, "talker", codes_chunk({codes.begin(), half}, groups), emit);
  worker->start(ReqId{1}, Value(), emit);
  while (worker->tick(0, emit) == 0) {
  }
  EXPECT_TRUE(emit.of[1].results.empty());
  worker->chunk(ReqId{1}, "talker", codes_chunk({half, codes.end()}, groups), emit);
  worker->chunks_done(ReqId{1}, "talker", emit);
  run(*worker, emit, 1);
  EXPECT_EQ(values_of<float>(emit.of[1], kSamplesKey), wanted);
}

// Each gets its sound, and the one that was given the least comes next.
TEST(Vocode, SoundsTogetherAreThoseAlone) {
  const auto worker = vocoder();
  const std::vector<Spoken> all = spoken_texts();
  Emitted emit;
  for (std::size_t i = 0; i < all.size(); ++i) {
    worker->chunk(ReqId{i + 1}, "talker", codes_chunk(all[i].codes, speech_config().vocoder.quantizers), emit);
    worker->chunks_done(ReqId{i + 1}, "talker", emit);
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
    worker->chunks_done(ReqId{id}, "talker", emit);
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
