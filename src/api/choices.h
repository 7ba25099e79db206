// From the prompts of one HTTP request to the engine requests that answer it, one for each choice, prompt-major.
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "api/fields.h"
#include "stages/engine.h"

namespace millrace::api {

// Choice 0 draws with the request's own seed, so n = 1 gives the first choice of n = 2; choice k > 0 with 64 bits of
// Philox keyed by that seed at counter k.
uint64_t seed_of_choice(uint64_t seed, std::size_t k);

// `sampling`: one for all prompts, or one for each. Without a seed of the client's every choice draws with a random
// one. The choices of a prompt share it.
std::vector<GenerateRequest> make_requests(std::vector<Prompt> prompts, std::span<const SamplingFields> sampling,
                                           const RequestFields& fields, std::size_t choices_per_prompt);

// kInvalidArgument where prompts times choices is over kMaxChoicesPerRequest; `field` is what the client can lower.
Status check_choice_count(std::size_t prompts, std::size_t choices_per_prompt, std::string_view field);

// kInvalidArgument where one request is more than the server runs and queues (ModelFacts::max_requests).
Status check_request_count(std::size_t requests, const ModelFacts& model);

// A prompt is held once for all its choices, but its ids, and with `echo` its text, are given to each of them.
inline constexpr std::size_t kMaxPromptVolumeBytes = std::size_t{64} << 20;

// kInvalidArgument where several choices of the prompts in a body of so many bytes are over kMaxPromptVolumeBytes.
// Before any prompt is copied. `field` as above.
Status check_prompt_volume(std::size_t body_bytes, std::size_t choices_per_prompt, std::string_view field);

}  // namespace millrace::api
