#include "api/answer_memory.h"

#include <utility>
#include <vector>

namespace millrace::api {
namespace {

// As JSON: a token's id, and a logprob with its id and punctuation. Those of chat, at most 21 at a place, have more.
constexpr std::size_t kTextOfToken = 8;
constexpr std::size_t kTextOfLogprob = 32;

std::size_t bytes_of(const std::vector<wire::TokenLogprobs>& positions) {
  std::size_t sum = positions.size() * (sizeof(wire::TokenLogprobs) + kTextOfLogprob);
  for (const wire::TokenLogprobs& position : positions) {
    const std::size_t values = position.top.size() + position.of_ids.size();
    sum += position.top_ids.size() * sizeof(int32_t) + values * (sizeof(double) + kTextOfLogprob);
  }
  return sum;
}

}  // namespace

std::size_t bytes_of(const wire::TextDelta& delta) {
  std::size_t events = 0;
  for (const wire::OutputEvent& event : delta.events) events += sizeof(event) + 2 * event.text.size();
  return 2 * delta.text.size() + events + delta.tokens.size() * (sizeof(int32_t) + kTextOfToken) +
         bytes_of(delta.logprobs) + bytes_of(delta.prompt_logprobs) +
         (delta.embedding ? delta.embedding->values.bytes.size() : 0);
}

Status AnswerShare::add(std::size_t bytes) {
  bytes_ += bytes;
  const std::size_t all = memory_->held_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes_ > kMaxAnswerBytes) {
    return error(
        StatusCode::kUnsupported,
        "the answer holds {} bytes; wanted at most {}: ask for fewer logprobs, tokens or choices, or for a stream",
        bytes_, kMaxAnswerBytes);
  }
  if (all > kMaxAnswersBytes && bytes_ > kSmallAnswerBytes) {
    return error(StatusCode::kResourceExhausted,
                 "the answers that clients have not read yet hold {} bytes, the limit is {}; try again later", all,
                 kMaxAnswersBytes);
  }
  return ok_status();
}

void AnswerShare::set(std::size_t bytes) {
  memory_->held_.fetch_add(bytes - std::exchange(bytes_, bytes), std::memory_order_relaxed);
}

}  // namespace millrace::api
