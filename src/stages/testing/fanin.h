// The pipeline of examples/pipelines/fanin.yaml, and what it must answer (tests/oracles/stages_toys.py).
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "examples/workers/formulas.h"
#include "stages/stage_spec.h"
#include "stages/testing/mini_coordinator.h"

namespace millrace::testing {

inline Value args(std::vector<std::pair<std::string, Value>> entries) {
  Value out = ValueMap{};
  for (auto& [key, value] : entries) out.set(key, value);
  return out;
}

inline std::vector<StageSpec> fanin_stages(int64_t pace_ms = 0) {
  std::vector<StageSpec> stages(8);
  const auto set = [&stages](std::size_t i, const char* name, const char* worker, std::vector<std::string> next) {
    stages[i].name = name;
    stages[i].worker = worker;
    stages[i].terminal = next.empty();
    stages[i].next = std::move(next);
    return &stages[i];
  };
  StageSpec* s = set(0, "preprocessing", "toy.preprocess", {"image_encoder", "audio_encoder", "mm_aggregate"});
  s->route = "toy.active_encoders";
  s->project_payload = {{"image_encoder", "toy.only_image"}, {"audio_encoder", "toy.only_audio"}};
  s = set(1, "image_encoder", "toy.encode_image", {"mm_aggregate"});
  s->args = args({{"size", 16}, {"max_batch", 8}, {"max_wait_ms", 5}});
  s = set(2, "audio_encoder", "toy.encode_audio", {"mm_aggregate"});
  s->args = args({{"window", 160}});
  s = set(3, "mm_aggregate", "toy.aggregate", {"thinker", "talker_ar"});
  s->wait_for = {"preprocessing", "image_encoder", "audio_encoder"};
  s->wait_for_rule = "toy.active_sources";
  s->merge = "toy.merge";
  s->route = "toy.active_generators";
  s = set(4, "thinker", "toy.think", {"decode"});
  s->args = args({{"steps", 24}, {"width", 32}, {"pace_ms", pace_ms}});
  s->stream_to = {"talker_ar", "decode"};
  s->stream_done_to = "toy.active_listeners";
  s = set(5, "decode", "toy.decode", {});
  s->can_accept_stream_before_payload = true;
  s = set(6, "talker_ar", "toy.talk", {"code2wav"});
  s->stream_to = {"code2wav"};
  s->can_accept_stream_before_payload = true;
  s = set(7, "code2wav", "toy.tone", {});
  s->args = args({{"samples", 240}});
  s->can_accept_stream_before_payload = true;
  for (StageSpec& stage : stages) {
    if (!stage.args.is<ValueMap>()) stage.args = ValueMap{};
  }
  return stages;
}

inline Value to_value(const nlohmann::json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number()) return json.get<int64_t>();
  if (json.is_array()) {
    ValueList list;
    for (const auto& item : json) list.push_back(to_value(item));
    return list;
  }
  Value out = ValueMap{};
  for (const auto& [key, item] : json.items()) out.set(key, to_value(item));
  return out;
}

struct FaninCase {
  Value inputs;
  std::vector<std::string> terminals;
  nlohmann::json wanted;
};

inline std::vector<FaninCase> fanin_cases() {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/stages/fanin.json");
  std::ostringstream text;
  text << file.rdbuf();
  const auto json = parse_json(text.str()).value();
  std::vector<FaninCase> cases;
  for (const auto& one : json) {
    FaninCase c{.inputs = to_value(one.at("inputs")), .wanted = one};
    for (const auto& name : one.at("modalities")) c.terminals.push_back(name == "text" ? "decode" : "code2wav");
    cases.push_back(std::move(c));
  }
  return cases;
}

inline std::string text_in(const Value& map, const char* key) {
  const Value* value = map.find(key);
  return value && value->get<std::string>() ? *value->get<std::string>() : "(none)";
}

// Every byte of the answer.
inline void expect_answer(const LoopOutcome& outcome, const FaninCase& wanted) {
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(outcome.ends, 1);
  EXPECT_EQ(outcome.results.size(), wanted.terminals.size());
  const std::string text = wanted.wanted.at("text");
  if (const auto decode = outcome.results.find("decode"); decode != outcome.results.end()) {
    EXPECT_EQ(text_in(decode->second, "text"), text);
    EXPECT_EQ(text_in(decode->second, "key"), wanted.wanted.at("key"));
    std::string streamed;
    const auto chunks = outcome.chunks.find("decode");
    if (chunks != outcome.chunks.end()) {
      for (const Value& chunk : chunks->second) streamed += text_in(chunk, "text");
    }
    EXPECT_EQ(streamed, text);
  }
  if (const auto wave = outcome.results.find("code2wav"); wave != outcome.results.end()) {
    EXPECT_EQ(text_in(wave->second, "hash"), wanted.wanted.at("pcm_hash"));
    EXPECT_EQ(*wave->second.find("samples")->get<int64_t>(), wanted.wanted.at("samples").get<int64_t>());
    uint64_t hash = 0xCBF29CE484222325u;
    std::vector<int64_t> first;
    const auto chunks = outcome.chunks.find("code2wav");
    if (chunks != outcome.chunks.end()) {
      for (const Value& chunk : chunks->second) {
        const SharedTensor& pcm = *chunk.find("pcm")->get<SharedTensor>();
        hash = examples::fnv(pcm.bytes.span(), hash);
        for (const int16_t sample : pcm.view().as<int16_t>()) {
          if (first.size() < 8) first.push_back(sample);
        }
      }
    }
    EXPECT_EQ(examples::hex(hash), wanted.wanted.at("pcm_hash"));
    EXPECT_EQ(nlohmann::json(first), wanted.wanted.at("first_samples"));
  }
}

}  // namespace millrace::testing
