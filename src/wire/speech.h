// What a request wants spoken, and what the talker's stage must know of it. Parts of the messages of generating
// (wire/generation.h).
//
// Field numbers in the visit() functions are the wire format: append only. Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "wire/prompt_media.h"

namespace millrace::wire {

inline constexpr std::size_t kMaxVoiceBytes = 64;

// Sampling of codes. The first code of a frame is drawn as a token is; the others with temperature 1, the 50 likeliest
// and top_p 0.8, or greedily where `temperature` is 0. Defaults: transformers' for Qwen3-Omni.
struct SpeechRequest {
  std::string voice;         // one of the model's, in lower case
  uint64_t seed = 0;         // draws of codes depend on it, on the frame and on the codebook
  double temperature = 0.9;  // 0: greedy, all codes of a frame
  double top_p = 1;
  int32_t top_k = 50;
  double repetition_penalty = 1.05;  // over the first codes of the frames so far
  int32_t max_frames = 0;            // 0: to the end of the talker's context
  bool verbatim = false;             // the answer is the text at the end of the prompt: nothing is generated

  template <typename V>
  void visit(V&& v) {
    v(1, voice, kMaxVoiceBytes), v(2, seed), v(3, temperature), v(4, top_p), v(5, top_k), v(6, repetition_penalty);
    v(7, max_frames), v(8, verbatim);
  }
  friend bool operator==(const SpeechRequest&, const SpeechRequest&) = default;
};

// Rides on the request's first delta, to the stage that speaks it.
struct SpeechStart {
  SpeechRequest request;
  std::vector<int32_t> prompt;
  std::vector<PromptMedia> media;  // of the prompt, without their files; their rows follow as a tensor

  template <typename V>
  void visit(V&& v) {
    v(1, request), v(2, prompt), v(3, media, kMaxPromptMedia);
  }
};

}  // namespace millrace::wire
