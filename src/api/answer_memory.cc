#include "api/answer_memory.h"

#include <utility>
#include <vector>

namespace millrace::api {
namespace {

std::size_t bytes_of(const std::vector<wire::TokenLogprobs>& positions) {
  std::size_t sum = positions.size() * sizeof(wire::TokenLogprobs);
  for (const wire::TokenLogprobs& position : positions) {
    sum += position.top_ids.size() * sizeof(int32_t) + (position.top.size() + position.of_ids.size()) * sizeof(double);
  }
  return sum;
}

}  // namespace

std::size_t bytes_of(const wire::TextDelta& delta) {
  std::size_t events = 0;
  for (const wire::OutputEvent& event : delta.events) events += sizeof(event) + event.text.size();
  return delta.text.size() + events + delta.tokens.size() * sizeof(int32_t) + bytes_of(delta.logprobs) +
         bytes_of(delta.prompt_logprobs) + (delta.embedding ? delta.embedding->values.bytes.size() : 0);
}

Status AnswerMemory::add(std::size_t& held, std::size_t bytes) {
  held += bytes;
  const std::size_t all = held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (held > kMaxAnswerBytes) {
    return error(
        StatusCode::kUnsupported,
        "the answer holds {} bytes; wanted at most {}: ask for fewer logprobs, tokens or choices, or for a stream",
        held, kMaxAnswerBytes);
  }
  if (all > kMaxAnswersBytes) {
    return error(StatusCode::kResourceExhausted,
                 "the answers under way hold {} bytes, the limit is {}; try again later", all, kMaxAnswersBytes);
  }
  return ok_status();
}

void AnswerMemory::release(std::size_t& held) { held_.fetch_sub(std::exchange(held, 0), std::memory_order_relaxed); }

}  // namespace millrace::api
