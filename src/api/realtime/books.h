// RealtimeBooks: how many sessions are open and what they hold, all together. SessionShare is one session's part, which
// is released with it.
//
// Owner: the route (realtime_route.cc) and its sessions share the one RealtimeBooks; a session has its SessionShare.
// Thread safety: RealtimeBooks any thread; a SessionShare under its session's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "api/realtime/limits.h"
#include "base/metrics.h"
#include "base/status.h"

namespace millrace::api {

struct RealtimeBooks {
  explicit RealtimeBooks(Metrics& metrics)
      : open(metrics.gauge("realtime_sessions", "Open sessions of /v1/realtime.")),
        held(metrics.gauge("realtime_bytes", "Of conversations and input audio of those sessions.")),
        opened(metrics.counter("realtime_sessions_total", "Sessions of /v1/realtime that were opened.")) {}

  Gauge open, held;
  Counter opened;
  std::atomic<std::size_t> sessions{0}, bytes{0};
};

class SessionShare {
 public:
  // nullptr: kMaxRealtimeSessions are open.
  static std::unique_ptr<SessionShare> take(std::shared_ptr<RealtimeBooks> books) {
    CHECK(books != nullptr);
    if (books->sessions.fetch_add(1) < kMaxRealtimeSessions)
      return std::unique_ptr<SessionShare>(new SessionShare(books));
    books->sessions.fetch_sub(1);
    return nullptr;
  }
  ~SessionShare() {
    set(0);
    books_->sessions.fetch_sub(1);
    books_->open.add(-1);
  }
  SessionShare(const SessionShare&) = delete;
  SessionShare& operator=(const SessionShare&) = delete;

  // kResourceExhausted: all sessions would hold over kMaxRealtimeBytes with so many more of this one.
  Status check(std::size_t more) const {
    const std::size_t held = books_->bytes.load(std::memory_order_relaxed);
    if (held + more <= kMaxRealtimeBytes) return ok_status();
    return error(StatusCode::kResourceExhausted,
                 "the sessions of this server hold {} bytes, and {} more are wanted; wanted at most {}", held, more,
                 kMaxRealtimeBytes);
  }
  // It holds so many bytes from now on.
  void set(std::size_t bytes) {
    books_->bytes.fetch_add(bytes - bytes_, std::memory_order_relaxed);  // modulo 2^64
    books_->held.add(static_cast<double>(bytes) - static_cast<double>(bytes_));
    bytes_ = bytes;
  }

 private:
  explicit SessionShare(std::shared_ptr<RealtimeBooks> books) : books_(std::move(books)) {
    books_->open.add(1);
    books_->opened.add();
  }

  const std::shared_ptr<RealtimeBooks> books_;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::api
