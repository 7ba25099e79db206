#include "scheduler/request_check.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace millrace {
namespace {

Status check_prompt(const wire::TokenizedRequest& request, const RunnerFacts& model) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid_argument("the prompt has 0 tokens; wanted at least 1");
  if (length >= model.context_length) {
    const int64_t slots = int64_t{model.page_count} * model.page_size;
    // The words by which api/error.h finds that it is the context.
    return error(StatusCode::kTooLarge,
                 "This model's maximum context length is {} tokens. However, the prompt has {} tokens.{}",
                 model.context_length, length,
                 slots < model.context_length ? fmt::format(" The KV cache holds {} tokens.", slots) : "");
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] >= 0 && request.prompt[i] < model.vocab_size) continue;
    return invalid_argument("prompt token {} is {}; wanted 0..{}", i, request.prompt[i], model.vocab_size - 1);
  }
  return ok_status();
}

Status check_lengths(const wire::TokenizedRequest& request, const RunnerFacts& model) {
  const wire::SamplingParams& sampling = request.sampling;
  if (sampling.max_tokens < 0) {
    return invalid_argument("max_tokens is {}; wanted an integer >= 0", sampling.max_tokens);
  }
  const auto length = static_cast<int32_t>(request.prompt.size());
  const int32_t most = std::min(sampling.max_tokens, model.context_length - length);
  if (sampling.min_tokens < 0 || sampling.min_tokens > most) {
    return invalid_argument("min_tokens is {}; wanted 0..{}, because at most {} tokens can be generated",
                            sampling.min_tokens, most, most);
  }
  if (sampling.prompt_logprobs_from < -1 || sampling.prompt_logprobs_from > length) {
    return invalid_argument("prompt_logprobs_from is {}; wanted -1..{}, because the prompt has {} tokens",
                            sampling.prompt_logprobs_from, length, length);
  }
  if (sampling.prompt_logprobs_from >= 0) {
    const int64_t positions = length - sampling.prompt_logprobs_from;
    const int64_t each = 1 + std::max(0, sampling.top_logprobs) + std::ssize(sampling.logprob_token_ids);
    if (positions * each > kMaxPromptLogprobs) {
      return error(
          StatusCode::kUnsupported,
          "{} positions of the prompt with {} logprobs each are wanted; wanted at most {} logprobs in all: ask for "
          "fewer, or from a later position on",
          positions, each, kMaxPromptLogprobs);
    }
  }
  const std::pair<const char*, int64_t> times[] = {{"timeout_ms", request.timeout_ms},
                                                   {"queue_timeout_ms", request.queue_timeout_ms}};
  for (const auto& [name, value] : times) {
    if (value < 0) return invalid_argument("{} is {}; wanted an integer >= 0", name, value);
  }
  return ok_status();
}

Status check_media(const wire::TokenizedRequest& request, const PromptInput* input, const RunnerFacts& model) {
  if (request.media.empty() && input == nullptr) return ok_status();
  const bool positions_alone = request.media.empty() && input->spans.empty();
  if (positions_alone ? !model.takes_positions : !model.takes_media) {
    return error(StatusCode::kUnsupported,
                 "the prompt has pictures or audio; wanted text alone: this engine takes no others");
  }
  const std::size_t spans = input == nullptr ? 0 : input->spans.size();
  if (spans != request.media.size()) {
    return internal_error("{} encoded pictures and audios for a prompt with {}", spans, request.media.size());
  }
  for (std::size_t i = 0; i < spans; ++i) {
    const MediaSpan& span = input->spans[i];
    if (span.begin == request.media[i].begin && span.features.rows == request.media[i].rows) continue;
    return internal_error("picture {} has rows [{}, {}); wanted [{}, {})", i, span.begin, span.end(),
                          request.media[i].begin, request.media[i].begin + request.media[i].rows);
  }
  const auto length = static_cast<int32_t>(request.prompt.size());
  const int32_t from = request.sampling.prompt_logprobs_from;
  if (from >= 0 && from < length) {
    return invalid_argument(
        "logprobs of the prompt are wanted from position {}, and it has pictures or audio; wanted none", from);
  }
  return ok_status();
}

Status check_row_state(bool any, const RunnerFacts& model) {
  if (!any || model.takes_row_states) return ok_status();
  return internal_error("the request has rows of a row source; wanted tokens: this engine has no row source");
}

Status check_capture(const RowCapture* capture, std::size_t length, const RunnerFacts& model) {
  if (capture == nullptr) return ok_status();
  if (capture->layer < 1 || capture->layer > model.layers || std::cmp_greater(capture->end(), length)) {
    return internal_error(
        "rows before {} are wanted behind {} layers; the prompt has {}, and this engine gives rows "
        "behind 1 to {} layers",
        capture->end(), capture->layer, length, model.layers);
  }
  return ok_status();
}

Status check_ids(const wire::SamplingParams& sampling, const RunnerFacts& model) {
  for (const wire::LogitBias& bias : sampling.logit_bias) {
    if (bias.token < 0 || bias.token >= model.vocab_size) {
      return invalid_argument("logit_bias names the token {}; wanted 0..{}", bias.token, model.vocab_size - 1);
    }
    if (!std::isfinite(bias.bias)) {
      return invalid_argument("logit_bias of token {} is {}; wanted a finite number", bias.token, bias.bias);
    }
  }
  for (int32_t id : sampling.logprob_token_ids) {
    if (id >= 0 && id < model.vocab_size) continue;
    return invalid_argument("logprob_token_ids names the token {}; wanted 0..{}", id, model.vocab_size - 1);
  }
  return ok_status();
}

}  // namespace

Status check_request(const wire::TokenizedRequest& request, const PreparedParts& prepared, const RunnerFacts& model) {
  RETURN_IF_ERROR(check_prompt(request, model));
  RETURN_IF_ERROR(check_lengths(request, model));
  RETURN_IF_ERROR(check_media(request, prepared.input.get(), model));
  RETURN_IF_ERROR(check_row_state(prepared.row_state != nullptr, model));
  RETURN_IF_ERROR(check_capture(prepared.capture.get(), request.prompt.size(), model));
  return check_ids(request.sampling, model);
}

}  // namespace millrace
