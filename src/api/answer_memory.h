// AnswerMemory: what the answers of one server hold that are not sent yet: texts, tokens and above all logprobs. One
// answer is bounded, and so are all together: a request of 150 KB can ask for hundreds of megabytes.
//
// Shared by all Replies. Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

inline constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxAnswersBytes = std::size_t{256} << 20;
inline constexpr std::size_t kInlineAnswerBytes = std::size_t{256} << 10;  // more is rendered on a thread aside

// What a delta adds to an answer, about.
std::size_t bytes_of(const wire::TextDelta& delta);

class AnswerMemory {
 public:
  // `held`: of one answer, and its share of the sum. kUnsupported: it is over kMaxAnswerBytes; kResourceExhausted: the
  // sum is over kMaxAnswersBytes. The bytes are counted all the same.
  Status add(std::size_t& held, std::size_t bytes);
  void release(std::size_t& held);
  std::size_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> held_ = 0;
};

}  // namespace millrace::api
