// Reply: the answer to one HTTP request that generates, made of the events of one or several engine requests.
//
// The engine's threads call on_text() of its choices; what it writes is posted to the io thread. Response headers are
// held back until every engine request was accepted, so a full queue or a bad template is a real HTTP status; after
// that an error becomes an `error` event and the stream ends without [DONE]. A request that was aborted by an operator
// is no error: it ends with the finish reason "abort".
//
// Samples of an answer that is spoken come by on_audio(). In a stream each call is one event; where the client
// would have over kMaxUnsentAudioBytes to read, the engine keeps them. In other answers they wait for the end, and
// count as texts do.
//
// Choices are prompt-major: those of one prompt stand together, and their order is that of the requests given to
// start().
//
// Owner: its choices share it. Thread safety: start(), on_text(), on_audio(), client_left(), cancel() and running()
// from any thread; locks are taken in this sequence: submit_mutex_, mutex_, RequestNames'.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "api/reply_format.h"
#include "api/routes.h"
#include "http/limits.h"
#include "http/server.h"
#include "stages/engine.h"

namespace millrace::api {

inline constexpr std::size_t kMaxEventBytes = 512u << 10;  // of a cumulative stream: repeating more is no service
inline constexpr std::size_t kUsualEventBytes = 512;
// Of a cumulative stream, unsent: with more, events are left out but the last of each choice. The next one repeats
// them, and a reader that takes all it gets is not cut off as a slow one.
inline constexpr std::size_t kMaxUnsentRepeatBytes = http::Limits{}.max_pending_bytes / 4;

struct ReplyOptions {
  bool stream = false;
  bool include_usage = false;     // streaming: a last chunk with the usage, and `usage: null` on the others
  bool continuous_usage = false;  // streaming: the usage so far on every chunk
  bool token_events = false;      // streaming: new tokens are output even where their text is still held back
  bool cumulative = false;        // streaming: each event repeats everything so far
  bool retained = false;          // streaming: the format keeps what it was given until the end
  bool metadata = false;          // `metadata` beside the choices has the weight versions
  bool prompt_first = false;      // streaming: a choice is silent until the logprobs of its prompt are complete
  std::size_t choices_per_prompt = 1;
  std::size_t best = 0;  // of each prompt's choices, so many of the likeliest are kept; 0: all. Not with stream
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  Reply(ApiContext& context, http::ResponderPtr responder, std::unique_ptr<ReplyFormat> format, ReplyOptions options);
  ~Reply();

  // Submits one engine request for each choice and watches the client. Call once. `names`: what /abort_request may call
  // its choices; a name in use answers 409. `echo`: what stands before each choice's text; empty: nothing.
  void start(std::vector<GenerateRequest> requests, std::vector<RequestNames::Name> names,
             std::vector<std::string> echo = {});

  // Ends the running ones of these choices with the event of an abort; how many there were. Not from an answer.
  std::size_t cancel(std::size_t first, std::size_t count);
  // The engine's ids of the running ones of these choices.
  std::vector<ReqId> running(std::size_t first, std::size_t count);

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice final : TextAnswer {
    void on_text(const wire::TextDelta& delta) override { reply->on_text(*this, delta); }
    SinkAnswer on_audio(std::span<const float> samples) override { return reply->on_audio(*this, samples); }

    Reply* reply = nullptr;
    ReqId id;
    bool accepted = false;
    double accepted_at_s = 0;  // since the HTTP request came
    bool fresh = false;        // streaming: there is output that no event has carried
    bool closed = false;       // streaming: the finish is out
    ChoiceState state;
    int32_t sent_tokens = 0;  // streaming: generated tokens that the client knows of
    double sent_at_s = 0;     // streaming: since the HTTP request came
  };

  void on_text(Choice& choice, const wire::TextDelta& delta);
  SinkAnswer on_audio(Choice& choice, std::span<const float> samples);
  bool is_full(std::size_t samples) const;
  Status take_audio(Choice& choice, std::span<const float> samples);
  void begin_stream(std::string& out);
  Status absorb(Choice& choice, const wire::TextDelta& delta);
  void client_left();
  Status stream_events(std::string& out);
  Status stream_choice(Choice& choice, std::string& out);
  void measure(Choice& choice);
  std::string members(const Choice& choice) const;
  std::string metadata(const std::vector<const ChoiceState*>& choices) const;
  void complete(std::string& out);
  void end_stream();
  void write_end(std::string& out);
  void send_body();
  std::string best_choices(std::vector<const ChoiceState*>& shown);
  void fail(const Choice& choice, const wire::Finish& finish);
  void abort_all();
  void leave();
  void note_end(std::string_view finish);
  double elapsed_seconds() const;
  wire::Usage total_usage() const;

  http::Server& server_;
  Engine& engine_;
  const std::shared_ptr<ApiState> state_;
  http::ResponderPtr responder_;
  const std::unique_ptr<ReplyFormat> format_;
  const ReplyOptions options_;
  const Clock::time_point begin_ = Clock::now();

  // Held by start(). cancel() waits for it, since it must reach the choices that are about to be submitted.
  std::mutex submit_mutex_;

  // Made before the choices, taken at the end.
  std::optional<ServerSpan> server_span_;

  std::mutex mutex_;  // guards what follows
  std::vector<Choice> choices_;
  std::vector<RequestNames::Name> names_;
  std::shared_ptr<AnswerShare> memory_;  // what it holds
  bool started_ = false;                 // SSE headers are out
  bool ended_ = false;
};

}  // namespace millrace::api
