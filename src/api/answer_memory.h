// AnswerMemory: what the answers of one server hold that clients have not taken yet: texts, tokens and above all
// logprobs, as they are kept and as they will be written, and then the written body until it is sent. One answer is
// bounded, and so are all together: a request of 30 KB can ask for hundreds of megabytes, and read them as slowly as it
// likes.
//
// AnswerShare is one answer's part of it; its last holder (Reply, or the http::Response of its body) gives it back.
// Owner: ApiState has the one AnswerMemory; shares refer to it by a shared_ptr to that state.
// Thread safety: AnswerMemory any thread; an AnswerShare one thread at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

inline constexpr std::size_t kMaxAnswerBytes = std::size_t{64} << 20;
inline constexpr std::size_t kMaxAnswersBytes = std::size_t{256} << 20;
inline constexpr std::size_t kSmallAnswerBytes = std::size_t{64} << 10;    // is served whatever others hold
inline constexpr std::size_t kInlineAnswerBytes = std::size_t{256} << 10;  // more is rendered on a thread aside

// What a delta adds to an answer, about: as it is kept, and as JSON.
std::size_t bytes_of(const wire::TextDelta& delta);

class AnswerMemory {
 public:
  std::size_t held() const { return held_.load(std::memory_order_relaxed); }

 private:
  friend class AnswerShare;
  std::atomic<std::size_t> held_ = 0;
};

class AnswerShare {
 public:
  explicit AnswerShare(std::shared_ptr<AnswerMemory> memory) : memory_(std::move(memory)) {}
  ~AnswerShare() { set(0); }
  AnswerShare(const AnswerShare&) = delete;
  AnswerShare& operator=(const AnswerShare&) = delete;

  // kUnsupported: this answer is over kMaxAnswerBytes; kResourceExhausted: all together are over kMaxAnswersBytes, and
  // this one is over kSmallAnswerBytes. The bytes are counted all the same.
  Status add(std::size_t bytes);
  // It holds so many bytes from now on.
  void set(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<AnswerMemory> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::api
