// Logprobs as the four families of endpoints write them.
//
//   chat         {"content":[{"token","logprob","bytes":[...],"top_logprobs":[{token,logprob,bytes}]}],"refusal":null}
//   responses    the array of content
//   completions  {"tokens":[],"token_logprobs":[],"top_logprobs":[{token: logprob}],"text_offset":[]}
//   native       [[logprob, id, text or null], ...], and lists of such lists for the rivals
//
// A logprob below kLeastLogprob (a token that cannot be drawn has minus infinity) is written as kLeastLogprob: JSON has
// no infinities. A token's text where a string is wanted: its bytes, with U+FFFD for what is no UTF-8; as a key of
// completions' top_logprobs, where two tokens must not fall together, "bytes:\xe2\x80" instead.
//
// Thread safety: free functions; they call Engine::token_bytes alone, which may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "stages/engine.h"

namespace millrace::api {

inline constexpr double kLeastLogprob = -9999.0;

using LogprobSpan = std::span<const wire::TokenLogprobs>;

// How the OpenAI formats write a token where its text stands otherwise.
struct TokenNames {
  const Engine& engine;
  bool as_ids = false;         // "token_id:5", as vLLM's return_tokens_as_token_ids
  std::size_t top = SIZE_MAX;  // so many of the likeliest are written: the engine may have given more
};

// The array `content` by itself, which is what /v1/responses has.
void append_token_logprobs(std::string& out, const TokenNames& names, LogprobSpan tokens);
void append_chat_logprobs(std::string& out, const TokenNames& names, LogprobSpan tokens);

// Where the next token of a completions text begins. Tokens are laid along the text as far as it is known; one whose
// bytes are not there (a special token that is left out) has no length.
struct TextOffset {
  std::string text;         // what the client has, this chunk's included
  std::size_t at = 0;       // bytes that the tokens so far have covered; beyond the text where it lags behind
  int64_t code_points = 0;  // of those bytes
};
// `prompt`, then `tokens`; `offset` moves on, so that the chunks of a stream continue each other.
void append_text_logprobs(std::string& out, const TokenNames& names, LogprobSpan prompt, LogprobSpan tokens,
                          TextOffset& offset);

// As vLLM's prompt_logprobs: null for the first token, then {"5": {"logprob", "rank", "decoded_token"}, ...} of the
// token and the likeliest. The rank is 1 for the likeliest.
void append_prompt_logprobs(std::string& out, const Engine& engine, LogprobSpan prompt);

// One entry a place.
void append_native_logprobs(std::string& out, const Engine& engine, LogprobSpan tokens, bool with_text);
// One list a place, null where the place has none (the first token of a prompt).
void append_native_top(std::string& out, const Engine& engine, LogprobSpan tokens, bool with_text);
void append_native_of_ids(std::string& out, const Engine& engine, LogprobSpan tokens, std::span<const int32_t> ids,
                          bool with_text);

// The mean over the places, by which best_of ranks; -infinity where there are none.
double mean_logprob(LogprobSpan tokens);

}  // namespace millrace::api
