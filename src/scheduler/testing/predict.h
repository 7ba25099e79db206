// predict: what a request must say, were it alone in the world with all the memory it wants. A plain loop over a list
// of tokens and HashModel. For tests only.
#pragma once

#include <algorithm>
#include <vector>

#include "scheduler/testing/hash_model.h"

namespace millrace::testing {

struct Expected {
  std::vector<int32_t> tokens;
  wire::Finish finish;
  std::vector<wire::TokenLogprobs> logprobs;         // of `tokens`, then of the stop token
  std::vector<wire::TokenLogprobs> prompt_logprobs;  // from prompt_logprobs_from on
};

// Equality for what is compared with a prediction.
template <typename T>
bool same(const T& a, const T& b) {
  return a == b;
}
template <>
inline bool same(const wire::TokenLogprobs& a, const wire::TokenLogprobs& b) {
  return a.token == b.token && a.logprob == b.logprob && a.top_ids == b.top_ids && a.top == b.top &&
         a.of_ids == b.of_ids;
}

namespace internal {

inline bool has(const std::vector<int32_t>& ids, int32_t token) { return std::ranges::count(ids, token) > 0; }

inline SamplingSpec spec_of(const wire::SamplingParams& sampling) {
  SamplingSpec spec;
  spec.temperature = sampling.temperature;
  spec.seed = sampling.seed;
  spec.frequency_penalty = sampling.frequency_penalty;
  spec.presence_penalty = sampling.presence_penalty;
  spec.repetition_penalty = sampling.repetition_penalty;
  spec.logit_bias = sampling.logit_bias;
  spec.top_logprobs = sampling.top_logprobs;
  spec.logprob_token_ids = sampling.logprob_token_ids;
  if (sampling.grammar) spec.grammar = std::make_shared<const grammar::TokenGrammar>();
  return spec;
}

}  // namespace internal

// Of prompt positions `from` and after. `spec`: what logprobs are wanted.
inline std::vector<wire::TokenLogprobs> predict_scores(const std::vector<int32_t>& prompt, int32_t from,
                                                       SamplingSpec spec, const HashModel& model, uint64_t version) {
  std::vector<wire::TokenLogprobs> scores;
  if (from < 0) return scores;
  spec.top_logprobs = std::max(spec.top_logprobs, 0);
  uint64_t kv = 0;
  uint64_t attended = 0;
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    const auto position = static_cast<int32_t>(i);
    if (position >= from && position == 0) scores.emplace_back().token = prompt[0];
    if (position >= from && position > 0) scores.push_back(model.logprobs(attended, position, prompt[i], spec));
    kv = HashModel::next_kv(kv, prompt[i], version);
    attended = HashModel::mix(attended, kv);
  }
  return scores;
}

// Of max_tokens, penalties and so on as the request says; what ends it says `finish`.
inline Expected predict(const wire::TokenizedRequest& request, const HashModel& model, uint64_t version,
                        int32_t context_length) {
  const wire::SamplingParams& sampling = request.sampling;
  SamplingSpec spec = internal::spec_of(sampling);
  Expected expected;
  expected.prompt_logprobs = predict_scores(request.prompt, sampling.prompt_logprobs_from, spec, model, version);
  expected.finish.reason = wire::FinishReason::kLength;
  std::vector<int32_t> generated;
  uint64_t kv = 0;
  uint64_t attended = 0;
  const auto read = [&](int32_t token) {
    kv = HashModel::next_kv(kv, token, version);
    attended = HashModel::mix(attended, kv);
  };
  for (int32_t token : request.prompt) read(token);
  auto length = static_cast<int32_t>(request.prompt.size());
  for (int32_t made = 0; made < sampling.max_tokens && length < context_length; ++made, ++length) {
    const auto stops = [&](int32_t token) {
      return internal::has(sampling.stop_token_ids, token) || (token == model.eos_token && !sampling.ignore_eos);
    };
    std::vector<int32_t> banned;
    for (int32_t token = 0; made < sampling.min_tokens && token < model.vocab_size; ++token) {
      if (stops(token)) banned.push_back(token);
    }
    spec.banned = std::move(banned);
    const int32_t token = model.draw(attended, length, spec, generated);
    if (sampling.top_logprobs >= 0) expected.logprobs.push_back(model.logprobs(attended, length, token, spec));
    generated.push_back(token);
    read(token);
    if (stops(token)) {
      expected.finish.reason = wire::FinishReason::kStop;
      expected.finish.matched_token = token;
      break;
    }
    expected.tokens.push_back(token);
  }
  return expected;
}

}  // namespace millrace::testing
