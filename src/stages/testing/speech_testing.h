// For tests of the stages that speak: the conversations of tests/golden/omni/speech (tests/oracles/omni_speech.py), and
// workers over its model. Included by *_test.cc only.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "formats/mapped_file.h"
#include "models/testing/model_testing.h"
#include "stages/generating/token_values.h"
#include "stages/media/media_facts.h"
#include "stages/speech/speech_workers.h"
#include "stages/testing/recorded_emit.h"

namespace millrace::testing {

using Emitted = RecordedEmit;

inline const std::string kSpeech = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/omni/speech";
inline constexpr int kMaxTicks = 100'000;

// One of spoken.json.
struct Spoken {
  std::vector<wire::PromptMedia> media;
  std::vector<float> media_rows;  // hidden rows of the thinker for these
  std::vector<int32_t> prompt, text;
  wire::SpeechRequest request;
  std::vector<int32_t> codes;  // [frames, groups]
  std::vector<float> samples;
};

// The pictures and audios of a conversation, where the template puts them.
inline std::vector<wire::PromptMedia> media_of(const nlohmann::json& messages, const std::vector<int32_t>& prompt) {
  const auto dir = open_model_dir(kSpeech);
  CHECK(dir.ok());
  const auto facts = read_media_facts(kSpeech, dir->config);
  CHECK(facts.ok() && facts->pictures && facts->audio);
  auto media = std::make_shared<std::vector<PromptItem>>();
  for (const auto& message : messages) {
    for (const std::string part : message["parts"]) {
      const bool audio = part.ends_with(".wav");
      const std::string folder = audio ? "omni/clips/" : "vision/pictures/";
      auto bytes = read_small_file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/" + folder + part, 1 << 20);
      if (!bytes.ok()) continue;  // a text
      auto one = audio ? read_audio(std::move(*bytes), *facts->audio)
                       : read_picture(std::move(*bytes), false, *facts->pictures);
      CHECK(one.ok());
      one->bytes.bytes.clear();
      media->push_back({std::move(*one)});
    }
  }
  return position_media(prompt, media, MediaTokens(*facts));
}

// transformers never speaks the last id that its thinker samples, nor the last frame before a limit.
inline std::vector<Spoken> all_spoken() {
  const auto file = read_small_file(kSpeech + "/spoken.json", 1 << 20);
  CHECK(file.ok());
  auto golden = open_safetensors_file(kSpeech + "/golden.safetensors");
  CHECK(golden.ok());
  std::vector<Spoken> out;
  int number = -1;
  for (const auto& one : nlohmann::json::parse(*file)) {
    ++number;
    Spoken spoken{.prompt = one["prompt"], .text = one["greedy"]};
    spoken.media = media_of(one["messages"], spoken.prompt);
    if (!spoken.media.empty()) spoken.media_rows = golden_values<float>(*golden, "media_", number);
    spoken.text.pop_back();
    spoken.request.voice = one["voice"];
    spoken.request.temperature = 0;
    spoken.request.repetition_penalty = one["repetition_penalty"];
    if (!one["codec_eos"]) spoken.request.max_frames = one["talker_max_new_tokens"].get<int>() - 1;
    for (const auto& frame : one["codes"]) spoken.codes.insert(spoken.codes.end(), frame.begin(), frame.end());
    spoken.samples = golden_values<float>(*golden, "samples_", number);
    out.push_back(std::move(spoken));
  }
  CHECK(out.size() >= 8);
  return out;
}

// Those of text alone.
inline std::vector<Spoken> spoken_texts() {
  std::vector<Spoken> out = all_spoken();
  std::erase_if(out, [](const Spoken& spoken) { return !spoken.media.empty(); });
  return out;
}

// Those with pictures or audio.
inline std::vector<Spoken> spoken_media() {
  std::vector<Spoken> out = all_spoken();
  std::erase_if(out, [](const Spoken& spoken) { return spoken.media.empty(); });
  CHECK(out.size() >= 4);
  return out;
}

inline SpeechConfig speech_config() {
  const auto config = read_speech_config({.model = kSpeech});
  CHECK(config.ok() && *config);
  return **config;
}

inline const LoadProgress kNoProgress = [](const std::string&, double) {};

inline std::unique_ptr<Worker> talker(ModelOptions options = {}, SpeechConfig config = speech_config(),
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

inline std::unique_ptr<Worker> vocoder() {
  auto worker = make_vocode_worker(load_vocoder({.model = kSpeech, .threads = 1}, speech_config()));
  const Status status = worker->load(kNoProgress);
  CHECK(status.ok());
  return worker;
}

template <typename T>
inline std::vector<T> values_of(const auto& output, const char* key) {
  std::vector<T> out;
  for (const Value& chunk : output.chunks) {
    const auto values = chunk.find(key)->get<SharedTensor>()->view().as<T>();
    out.insert(out.end(), values.begin(), values.end());
  }
  return out;
}

inline wire::TokenDelta opening(uint64_t id, const Spoken& spoken) {
  wire::TokenDelta delta{.id = ReqId{id}};
  delta.start = wire::DetokenizeStart{};
  delta.speech = wire::SpeechStart{spoken.request, spoken.prompt, spoken.media};
  return delta;
}

inline Value media_chunk(const std::vector<float>& rows, int64_t width) {
  Buffer bytes(rows.size() * sizeof(float));
  std::memcpy(bytes.data(), rows.data(), rows.size() * sizeof(float));
  Value chunk;
  chunk.set(kMediaRowsKey, SharedTensor{.dtype = DType::kF32,
                                        .shape = {static_cast<int64_t>(rows.size()) / width, width},
                                        .bytes = SharedBytes(std::move(bytes))});
  return chunk;
}

inline Value media_chunk(const Spoken& spoken) {
  return media_chunk(spoken.media_rows, speech_config().talker.thinker_hidden_size);
}

inline wire::TokenDelta text(uint64_t id, std::vector<int32_t> ids, bool last) {
  wire::TokenDelta delta{.id = ReqId{id}, .tokens = std::move(ids)};
  if (last) delta.finish = wire::Finish{};
  return delta;
}

// The complete answer of the thinker, `each` ids a delta; `between` after each.
inline void send_answer(
    Worker& worker, uint64_t id, const Spoken& spoken, std::size_t each, Emitted& emit,
    const std::function<void()>& between = [] {}) {
  worker.tokens(ReqId{id}, "scheduler", opening(id, spoken), emit);
  between();
  if (!spoken.media.empty()) worker.chunk(ReqId{id}, "scheduler", media_chunk(spoken), emit);
  for (std::size_t at = 0; at < spoken.text.size(); at += each) {
    const auto begin = spoken.text.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = spoken.text.begin() + static_cast<std::ptrdiff_t>(std::min(at + each, spoken.text.size()));
    worker.tokens(ReqId{id}, "scheduler", text(id, {begin, end}, end == spoken.text.end()), emit);
    between();
  }
  worker.start(ReqId{id}, Value(), emit);
}

// Until `ends` requests have ended.
inline void run(Worker& worker, Emitted& emit, std::size_t ends) {
  for (int i = 0; i < kMaxTicks; ++i) {
    std::size_t ended = 0;
    for (const auto& [id, output] : emit.of) ended += output.results.size() + output.failures.size();
    if (ended >= ends) return;
    worker.tick(0, emit);
  }
  ADD_FAILURE() << "no end";
}

inline std::vector<int32_t> codes_alone(Worker& worker, const Spoken& spoken) {
  Emitted emit;
  send_answer(worker, 1, spoken, 1000, emit);
  run(worker, emit, 1);
  worker.drop(ReqId{1});
  EXPECT_EQ(emit.of[1].failures.size(), 0u);
  return values_of<int32_t>(emit.of[1], kCodesKey);
}

}  // namespace millrace::testing
