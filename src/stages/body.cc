#include "stages/body.h"

#include <utility>

namespace millrace {
namespace {

template <typename Delta>
std::size_t bytes_of(const Delta& delta) {
  return sizeof(int32_t) * delta.tokens.size() +
         sizeof(wire::TokenLogprobs) * (delta.logprobs.size() + delta.prompt_logprobs.size()) +
         (delta.embedding ? delta.embedding->values.bytes.size() : 0);
}

template <typename To, typename From>
To move_delta(From& from) {
  if (auto* tokens = std::get_if<wire::TokenDelta>(&from)) return std::move(*tokens);
  return std::get<wire::TextDelta>(std::move(from));
}

}  // namespace

std::size_t size_of_delta(const Body& delta) {
  if (const auto* tokens = std::get_if<wire::TokenDelta>(&delta)) return bytes_of(*tokens);
  const auto& text = std::get<wire::TextDelta>(delta);
  return text.text.size() + bytes_of(text);
}

wire::ChunkBody take_delta(Body& body) { return move_delta<wire::ChunkBody>(body); }
Body take_delta(wire::ChunkBody& body) { return move_delta<Body>(body); }

}  // namespace millrace
