// Reply: the answer to one HTTP request that generates, made of the news of one or several engine requests.
//
// It is the meeting point of two worlds: sinks call on_delta() from the engine's threads, the Responder posts to the
// HTTP thread. Response headers are held back until every engine request was accepted, so a full queue or a bad
// template is a real HTTP status; after that an error becomes an `error` event and the stream ends without [DONE].
//
// Shared by the sinks (shared_ptr). Thread safety: on_delta() and on_disconnect() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "http/server.h"
#include "stages/engine.h"

namespace millrace::api {

// How an endpoint family writes its JSON. Fragments are complete JSON texts.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  // Streaming: the first chunk of a choice (empty: none), a chunk of text, the last chunk.
  virtual std::string opening(int index) const = 0;
  virtual std::string delta(int index, std::string_view text) const = 0;
  virtual std::string closing(int index, const wire::Finish& finish) const = 0;
  // Streaming: the chunk that carries the usage alone.
  virtual std::string usage(const wire::Usage& usage) const = 0;
  // Not streaming: one choice, and the whole body around the choices.
  virtual std::string choice(int index, std::string_view text, const wire::Finish& finish) const = 0;
  virtual std::string body(std::string_view choices, const wire::Usage& usage) const = 0;
};

struct ReplyOptions {
  bool stream = false;
  bool include_usage = false;     // streaming: a last chunk with the usage, and `usage: null` on the others
  bool continuous_usage = false;  // streaming: the usage so far on every chunk
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  Reply(http::Server& server, Engine& engine, http::ResponderPtr responder, std::unique_ptr<ReplyFormat> format,
        ReplyOptions options, std::size_t choices);

  // Submits one engine request for each choice and watches the client. Call once, on the HTTP thread.
  void start(std::vector<GenerateRequest> requests);

 private:
  struct Choice {
    ReqId id;
    bool accepted = false;
    std::string text;  // not streaming: all of it
    std::string held;  // streaming: not yet sent, because another choice was not accepted yet
    wire::Usage usage;
    std::optional<wire::Finish> finish;
    bool closed = false;  // streaming: the finish is out
  };

  void on_delta(std::size_t index, const wire::TextDelta& delta);
  void stream_news(std::string& out);
  void stream_choice(std::size_t index, std::string& out);
  void append_event(std::string& out, std::string_view json, const Choice* choice) const;
  void complete(std::string& out);
  void fail(const wire::Finish& finish);
  void abort_all();
  wire::Usage total_usage() const;

  http::Server& server_;
  Engine& engine_;
  http::ResponderPtr responder_;
  const std::unique_ptr<ReplyFormat> format_;
  const ReplyOptions options_;

  std::mutex mutex_;  // guards what follows
  std::vector<Choice> choices_;
  bool started_ = false;  // SSE headers are out
  bool ended_ = false;
};

// The pieces that both formats share.
std::string_view finish_reason(const wire::Finish& finish);              // "stop" or "length"
void append_matched_stop(std::string& out, const wire::Finish& finish);  // "matched_stop": 7, "text" or null
void append_usage(std::string& out, const wire::Usage& usage);           // {"prompt_tokens": ...}
// "chatcmpl-" and 24 hex digits.
std::string make_id(std::string_view prefix);
int64_t unix_seconds();

}  // namespace millrace::api
