// One request's answer on its way from any thread to the io thread.
//
// Producers (Responder, any thread) put the response here under a mutex; the session (io thread) takes it. Exchanges
// with something to take queue up in the Hub, which wakes the io thread once for all of them: 256 streams that get a
// token each in one step cost one wake-up.
//
// Invariants: `phase_` only moves forward; on_disconnect runs at most once, on the io thread, and never after the
// response ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/limits.h"
#include "http/message.h"

namespace millrace::http {

class Exchange;

// Work for the io thread. Any thread may add; close() cuts the io thread off, after which additions are dropped.
class Hub {
 public:
  // `wake` makes the io thread call run() soon. It is called under the Hub's mutex, at most once per run().
  // The limits are those of unsent stream bytes (limits.h).
  Hub(std::function<void()> wake, const Limits& limits) : limits(limits), wake_(std::move(wake)) {}

  void ready(std::shared_ptr<Exchange> exchange);
  void post(std::function<void()> task);
  void run();  // io thread
  void close();

  const Limits limits;
  std::atomic<std::size_t> unsent{0};  // of all streams

 private:
  void wake_locked();

  std::mutex mutex_;
  std::function<void()> wake_;
  bool woken_ = false;
  bool closed_ = false;
  std::vector<std::shared_ptr<Exchange>> exchanges_;
  std::vector<std::function<void()>> tasks_;
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `on_ready` is called on the io thread when there is something to take; the owner clears it with detach().
  Exchange(std::shared_ptr<Hub> hub, std::function<void()> on_ready);
  ~Exchange() { forget_unsent(); }

  // Before the handler is called; constant then.
  void set_label(RequestLabel label) { label_ = std::move(label); }
  const RequestLabel& label() const { return label_; }

  // The Responder's side; any thread. See server.h.
  bool send(Response response);
  bool start_stream(std::string content_type, Headers headers);
  bool write(std::string_view chunk);
  void end(std::string_view last = {});
  void abort();
  void on_disconnect(std::function<void()> callback);
  bool disconnected() const;
  std::size_t pending_bytes() const { return unsent_.load(std::memory_order_relaxed); }
  // The last Responder is gone: answers 500, or breaks an unfinished stream off.
  void abandon();

  // The session's side; io thread only.
  struct Taken {
    bool head = false;       // `response` is new: status, headers, and for send() the body
    bool streaming = false;  // the body comes in chunks through take()'s second argument
    bool ended = false;      // nothing follows
    bool aborted = false;    // ... and the stream must not look complete
    Response response;
  };
  // Moves out what is new; swaps the queued stream bytes into `chunk`, which must be empty.
  void take(Taken& taken, std::string& chunk);
  void bytes_sent(std::size_t count);
  bool ended() const;
  // The reader is over a limit of unsent bytes: nothing more is sent to it.
  bool too_slow() const;
  // The client is gone or the server stops: runs on_disconnect unless the response has ended.
  // True when it had not ended.
  bool client_gone();
  void detach() { on_ready_ = nullptr; }
  void signal_ready();

 private:
  enum class Phase : uint8_t { kOpen, kStreaming, kEnded, kGone };
  void queue_locked();
  void add_locked(std::string_view chunk);
  bool fits(std::size_t more) const;
  void forget_unsent();

  const std::shared_ptr<Hub> hub_;
  std::function<void()> on_ready_;  // io thread only
  RequestLabel label_;

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kOpen;
  bool queued_ = false;
  bool too_slow_ = false;
  bool aborted_ = false;
  bool head_new_ = false;
  bool streaming_ = false;
  Response response_;
  std::string pending_;
  std::function<void()> on_disconnect_;
  std::atomic<std::size_t> unsent_{0};
};

}  // namespace millrace::http
