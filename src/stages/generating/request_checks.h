// What a request may ask that a stage `generate` does not have.
//
// Thread safety: pure functions. Errors: kUnsupported or kInvalidArgument, with the field of the request.
#pragma once

#include "base/status.h"
#include "wire/generation.h"

namespace millrace {

// sampling.grammar is set.
inline Status check_grammar_use(const wire::SamplingParams& sampling, bool has_tokenizer, bool has_end_tokens) {
  if (!has_tokenizer) return error(StatusCode::kUnsupported, "a grammar needs a tokenizer, and the model has none");
  if (has_end_tokens) return ok_status();
  return error(StatusCode::kUnsupported,
               "{} needs a token that ends a text, and the model's files name none (eos_token_id)",
               sampling.grammar->field);
}

// request.remote_kv is set.
inline Status check_transfer_use(const wire::TokenizedRequest& request, bool by_request) {
  if (!by_request) {
    return invalid_argument(
        "kv_transfer_params is set, and this server transfers nothing by request; wanted --kv-transfer-listen, or "
        "the field left out");
  }
  if (request.media.empty()) return ok_status();
  return error(StatusCode::kUnsupported,
               "kv_transfer_params is set, and the prompt has pictures or audio; wanted text");
}

}  // namespace millrace
