// One request's answer on its way from any thread to the io thread.
//
// A handler puts the response here, from any thread, under a mutex; the session (io thread) takes it. Exchanges
// with something to take queue up in the Hub, which wakes the io thread once for all of them: 256 streams that get a
// token each in one step cost one wake-up.
//
// Owner: an Exchange is shared by its session and its responder; the Hub by the server and its exchanges, which may
// outlive it. Threads: the two halves of Exchange state theirs.
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

inline constexpr std::string_view kEventStream = "text/event-stream; charset=utf-8";

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
  // `when_ready`: as on_ready; the owner clears it with detach().
  Exchange(std::shared_ptr<Hub> hub, std::function<void()> when_ready);
  ~Exchange() { forget_unsent(); }

  // Before the handler is called; constant then.
  void set_label(RequestLabel label) { label_ = std::move(label); }
  // Of the request that this answers.
  const RequestLabel& label() const { return label_; }

  // ---- The responder's side; any thread. Either send() once, or start_sse() or start_stream(), write() any number of
  // times, end().

  // The whole response. False when the request has already ended or the client is gone (nothing is sent then).
  bool send(Response response);
  // Starts a 200 text/event-stream response. False as above. Chunked for HTTP/1.1, close-delimited for 1.0.
  bool start_sse(Headers headers = {}) { return start_stream(std::string(kEventStream), std::move(headers)); }
  // The same with another content type, for bodies that are sent while they are made: what is written is the body.
  bool start_stream(std::string content_type, Headers headers = {});
  // Queues ready SSE text (one or several whole events), or the next bytes of another stream. Chunks queued while a
  // socket write is in flight go out together. False once the client is gone, the response ended, or this reader is too
  // slow (more than max_pending_bytes unsent: the connection is aborted and on_disconnect fires).
  bool write(std::string_view chunk);
  // Ends the stream. Later calls do nothing. `last`: text before the end, which like a plain response may be over
  // max_pending_bytes: nothing follows it.
  void end(std::string_view last = {});
  // Breaks the response off: a client sees a truncated stream, never a well-formed end. For failures with no better
  // answer.
  void abort();
  // `callback` runs once, on the io thread, when the client goes away (FIN, RST, stalled or too slow reading, server
  // stop) before the response ended; when that has already happened, it is posted at once. It never runs after send()
  // or end() returned true. Replaces an earlier callback. It is dropped when the response ends. Capture a weak_ptr to
  // the responder rather than a shared_ptr.
  void on_disconnect(std::function<void()> callback);
  bool disconnected() const;
  // Response bytes accepted by write() that the kernel has not yet taken.
  std::size_t pending_bytes() const { return unsent_.load(std::memory_order_relaxed); }
  // The last responder is gone: answers 500, or breaks an unfinished stream off.
  void abandon();

  // ---- The session's side; io thread only.

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
  void detach() { on_ready = nullptr; }
  std::function<void()> on_ready;  // there is something to take

 private:
  enum class Phase : uint8_t { kOpen, kStreaming, kEnded, kGone };
  void ready_locked();
  void add_locked(std::string_view chunk);
  bool fits(std::size_t more) const;
  void forget_unsent();

  const std::shared_ptr<Hub> hub_;
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

// A handler's hold on the exchange that it answers, however long that takes; of the Exchange, the responder's side is
// its own. When the last one goes and there is no answer, the client gets a 500.
using ResponderPtr = std::shared_ptr<Exchange>;
ResponderPtr make_responder(std::shared_ptr<Exchange> exchange);

}  // namespace millrace::http
