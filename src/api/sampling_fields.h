// Reading the fields that define how tokens are drawn and when a text ends. Both families of endpoints have them: the
// OpenAI ones at the top of the body, the native one inside `sampling_params`; a dialect has what differs.
//
// Thread safety: free functions and constants.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/json.h"
#include "stages/engine.h"

namespace millrace::api {

inline constexpr int64_t kMaxTopK = int64_t{1} << 30;
inline constexpr int64_t kMaxChoicesPerPrompt = 128;       // n and best_of
inline constexpr std::size_t kMaxChoicesPerRequest = 256;  // prompts times n (or best_of)
inline constexpr int64_t kMaxClientTopLogprobs = 20;
inline constexpr int64_t kMaxLogprobValues = int64_t{16} << 20;  // of one request: choices x places x ids at a place
inline constexpr double kGreedyBelow = 1e-6;  // a temperature under it is greedy: logits over it would overflow
inline constexpr double kMaxLogitBias = 100;  // and least: its negative

struct SamplingDialect {
  std::string_view max_tokens, max_tokens_also;  // the second wins where both are given; "": there is none
  std::string_view n_predict;  // llama.cpp's name, which wins there too, and of which -1 is no bound; "": there is none
  std::string_view min_tokens;
  std::string_view seed;
  std::string_view stop = "stop";
  int64_t least_max_tokens = 1;
  std::optional<int32_t> default_max_tokens;  // where the field is absent; nullopt: to the end of the context
  bool null_is_unbounded = false;             // a null for max_tokens means the end of the context, not the default
  double max_temperature = 2;
  bool model_defaults = true;  // absent fields take what the model's generation_config.json has
};

extern const SamplingDialect kOpenAiDialect;
extern const SamplingDialect kNativeDialect;
extern const SamplingDialect kMessagesDialect;
extern const SamplingDialect kResponsesDialect;

struct SamplingFields {
  wire::SamplingParams params;  // its seed counts where `seeded`
  bool seeded = false;
  std::optional<int32_t> max_tokens;
  int32_t n = 1;
};

// kInvalidArgument with the field's name first in the message, the value seen and the range wanted.
Result<SamplingFields> read_sampling(const Json& object, const ModelFacts& model, const SamplingDialect& dialect);

// An integer field within [low, high]; absent leaves `out` empty.
Status read_integer(const Json& object, std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out);

// `logprobs`, a switch, and `top_logprobs`, a count that needs it: how many of the likeliest are shown beside each
// token; nullopt: no logprobs.
Result<std::optional<int32_t>> read_chat_logprobs(const Json& body);

// A list of token ids inside the vocabulary; absent leaves `out` as it is.
Status read_token_ids(const Json& object, std::string_view key, const ModelFacts& model, std::size_t at_most,
                      std::vector<int32_t>& out);

// kInvalidArgument where `choices` texts with the wanted logprobs could hold more than kMaxLogprobValues numbers.
Status check_logprob_volume(const wire::SamplingParams& sampling, const std::optional<int32_t>& max_tokens,
                            std::size_t choices, const ModelFacts& model);

}  // namespace millrace::api
