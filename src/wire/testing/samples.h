// Parts of messages with every field set, as tests/oracles/wire_frames.py has them. Thread safety: free functions.
#pragma once

#include <string>
#include <vector>

#include "wire/messages.h"

namespace millrace::wire::testing {

inline constexpr const char* kTraceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

inline SpeechRequest sample_speech() {
  return {.voice = "ethan",
          .seed = 18446744073709551615ull,
          .temperature = 0.5,
          .top_p = 0.75,
          .top_k = 20,
          .repetition_penalty = 1.25,
          .max_frames = 100,
          .verbatim = true};
}

inline TokenizedRequest sample_request() {
  TokenizedRequest request;
  request.id = ReqId{0x1122334455667788};
  request.prompt = {0, 1, -1, 2147483647, 151643};
  request.sampling = {.max_tokens = 64, .temperature = 0.7, .top_p = 0.9, .top_k = 40, .seed = 18446744073709551615ull};
  request.sampling.stop = {"\n\n", "é", std::string(300, 'x')};
  request.sampling.stop_token_ids = {2, 3};
  request.sampling.frequency_penalty = 0.5;
  request.sampling.presence_penalty = -2;
  request.sampling.repetition_penalty = 1.25;
  request.sampling.min_tokens = 3;
  request.sampling.logit_bias = {{5, -100}, {151642, 0.5}};
  request.sampling.stop_regex = {"a+b"};
  request.sampling.top_logprobs = 2;
  request.sampling.logprob_token_ids = {4};
  request.sampling.grammar = GrammarSource{GrammarKind::kRegex, "[a-z]+", "guided_regex"};
  request.sampling.parsing =
      OutputParsing{ToolDialect::kQwen, {"weather"}, ReasoningDialect::kThinkOpen, true, false, true, {"weather/city"}};
  request.extra_key = "tenant";
  request.priority = -3;
  request.timeout_ms = 1500;
  request.remote_kv = RemoteKv{{"xfer-7f_A"}, KvRole::kDecode, "tcp://[::1]:5001"};
  request.media = {
      {MediaKind::kImage, 1, 2, 1, 4, 2, {std::string(32, '\x07')}, {"\xff\xd8"}, "messages[0].content[1]"},
      {MediaKind::kAudio, 4, 1, 9, 1, 1, {std::string(32, '\x08')}, {"fLaC"}, "messages[0].content[2]"}};
  request.speech = sample_speech();
  request.embed = true;
  return request;
}

inline std::vector<TokenLogprobs> sample_logprobs() {
  return {{.token = 7, .logprob = -0.5, .top_ids = {7, 8}, .top = {-0.5, -1.25}, .rank = 1},
          {.token = 8, .of_ids = {-3.5}}};
}

inline TokenDelta sample_tokens(int i) {
  TokenDelta delta{.id = ReqId{static_cast<uint64_t>(i)}};
  if (i % 2) delta.start = DetokenizeStart{.stop = {"stop"}};
  if (i % 3 == 0) delta.tokens = {i, i + 1};
  if (i % 5 == 0) delta.finish = Finish{.reason = FinishReason::kStop, .matched_token = 7};
  delta.usage = {.prompt_tokens = i, .completion_tokens = 2, .cached_tokens = 1};
  if (i == 6) delta.usage.transfer = KvTransferred{.seconds = 0.25, .bytes = uint64_t{1} << 40, .way = "shm"};
  if (i == 9) delta.logprobs = sample_logprobs();
  if (i == 1) delta.prompt_logprobs = sample_logprobs();
  delta.weight_version = 2;
  if (i == 5) delta.speech = SpeechStart{sample_speech(), {0, 151643}, {{.begin = 1, .rows = 1}}};
  if (i == 10) delta.embedding = Embedding{{std::string("\0\0\x80\x3f", 4)}};
  return delta;
}

}  // namespace millrace::wire::testing
