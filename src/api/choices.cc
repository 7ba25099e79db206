#include "api/choices.h"

#include <random>
#include <utility>

#include "base/rng.h"
#include "base/status.h"

namespace millrace::api {
namespace {

constexpr uint64_t kChoiceStream = 0x63686F696365;  // "choice": apart from the draws of the tokens themselves

uint64_t random_seed() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return generator();
}

}  // namespace

uint64_t seed_of_choice(uint64_t seed, std::size_t k) {
  if (k == 0) return seed;
  const PhiloxBlock block = philox(seed, k, kChoiceStream);
  return (uint64_t{block[0]} << 32) | block[1];
}

std::vector<GenerateRequest> make_requests(std::vector<Prompt> prompts, std::span<const SamplingFields> sampling,
                                           const RequestFields& fields, std::size_t choices_per_prompt) {
  CHECK(sampling.size() == 1 || sampling.size() == prompts.size());
  CHECK(!prompts.empty() && choices_per_prompt > 0);
  std::vector<GenerateRequest> out;
  out.reserve(prompts.size() * choices_per_prompt);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const SamplingFields& fields_of_prompt = sampling[sampling.size() == 1 ? 0 : i];
    const SharedPrompt prompt = std::move(prompts[i]);
    for (std::size_t k = 0; k < choices_per_prompt; ++k) {
      GenerateRequest& request = out.emplace_back();
      request.prompt = prompt;
      request.sampling = fields_of_prompt.params;
      request.sampling.seed = fields_of_prompt.seeded ? seed_of_choice(fields_of_prompt.params.seed, k) : random_seed();
      request.max_tokens = fields_of_prompt.max_tokens;
      request.extra_key = fields.extra_key;
      request.priority = fields.priority;
      request.timeout_ms = fields.timeout_ms;
      request.queue_timeout_ms = fields.queue_timeout_ms;
      request.replica = fields.replica;
      request.remote_kv = fields.remote_kv;
    }
  }
  return out;
}

Status check_choice_count(std::size_t prompts, std::size_t choices_per_prompt, std::string_view field) {
  if (prompts * choices_per_prompt <= kMaxChoicesPerRequest) return ok_status();
  return invalid_argument("{} is {} for {} prompts; wanted at most {} texts in one request", field, choices_per_prompt,
                          prompts, kMaxChoicesPerRequest);
}

Status check_request_count(std::size_t requests, const ModelFacts& model) {
  if (model.max_requests == 0 || std::cmp_less_equal(requests, model.max_requests)) return ok_status();
  return invalid_argument(
      "the request has {} texts or choices, of which this server runs and queues {} at once (--max-running-requests, "
      "--max-queued-requests); wanted fewer",
      requests, model.max_requests);
}

Status check_prompt_volume(std::size_t body_bytes, std::size_t choices_per_prompt, std::string_view field) {
  CHECK(choices_per_prompt > 0);
  if (choices_per_prompt == 1 || body_bytes <= kMaxPromptVolumeBytes / choices_per_prompt) return ok_status();
  return invalid_argument("{} is {} with a body of {} bytes; wanted at most {} bytes of prompts in all choices", field,
                          choices_per_prompt, body_bytes, kMaxPromptVolumeBytes);
}

}  // namespace millrace::api
