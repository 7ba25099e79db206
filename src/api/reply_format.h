// ReplyFormat: how an endpoint family writes its JSON, and what it may know of a choice.
//
// Owner: one Reply has its format. EventWriter lies on the stack of the Reply's function that writes.
// Thread safety: the Reply calls both under its mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/weights.h"
#include "wire/generation.h"

namespace millrace::api {

// One choice of an answer. What grows (text, events, tokens, logprobs) is all of it in answers that are not streamed
// and in cumulative streams, and in other streams what is new since the last event.
struct ChoiceState {
  int index = 0;                          // its number in the answer
  std::string text;                       // with what is echoed before it
  std::vector<wire::OutputEvent> events;  // of a request with parsed output: instead of its text
  std::vector<int32_t> tokens;            // generated ones; at the end with the stop or end token
  std::vector<wire::TokenLogprobs> logprobs, prompt_logprobs;
  wire::Usage usage;
  uint64_t weight_version = 0;           // of the newest token
  std::vector<WeightSpan> weight_spans;  // of all generated tokens
  std::vector<float> samples;            // of an answer that is spoken; not where it is sent as it comes
  std::vector<float> embedding;          // of a request that wants it
  double elapsed_seconds = 0;            // since the HTTP request came
  double first_token_seconds = 0;        // the same, when the first tokens were here; 0: there are none
  Boxed<wire::Finish> finish;
};

// How the objects of a stream are separated: as server-sent events, or each on a line of its own.
enum class StreamForm : uint8_t { kEvents, kLines };

// The objects of a stream, written in place: begin() gives the text to append one JSON object to, end() completes its
// event or line. `event`: its name, on a line before the data; empty: it has none, as lines have none.
class EventWriter {
 public:
  // `member` (",\"usage\":null") is put into each object, last; empty: none.
  EventWriter(std::string& out, std::string member, StreamForm form = StreamForm::kEvents)
      : out_(out), member_(std::move(member)), form_(form) {}
  std::string& begin(std::string_view event = {});
  void end();
  std::string& bytes() { return out_; }             // of a body that has no events
  std::size_t largest() const { return largest_; }  // bytes of an object, without the member

 private:
  std::string& out_;
  const std::string member_;
  const StreamForm form_;
  std::size_t begin_ = 0, largest_ = 0;
};

// {"prompt_tokens": ...}. `audio_tokens`: of an answer that is spoken; nullopt: it is not.
void append_usage(std::string& out, const wire::Usage& usage, std::optional<int64_t> audio_tokens = {});

// Fragments are complete JSON texts; events are objects.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;
  virtual StreamForm stream_form() const { return StreamForm::kEvents; }
  // The engine has taken the request of a choice.
  virtual void accepted() {}
  // Streaming: the first chunk of a choice, where there is one, and the chunks with what is new.
  virtual void opening(const ChoiceState& /*choice*/, EventWriter& /*out*/) {}
  virtual void events(const ChoiceState& choice, EventWriter& out) = 0;
  // Streaming: the samples that come next of an answer that is spoken. An error ends the answer.
  virtual Status audio(std::span<const float> /*samples*/, EventWriter& /*out*/) { return ok_status(); }
  // A choice has all that it gets: what is left to do before its last events() or its choice(), and may fail.
  virtual Status finish(const ChoiceState& /*choice*/) { return ok_status(); }
  // Streaming: the chunk that carries the usage alone.
  virtual std::string usage(const wire::Usage& usage) { return body("", usage); }
  // {"prompt_tokens": ...}, where options ask for it.
  virtual void write_usage(std::string& out, const wire::Usage& usage) const { append_usage(out, usage); }
  // Streaming: what ends a complete stream, and what ends it after an error, as events.
  virtual std::string last_event() const { return "data: [DONE]\n\n"; }
  virtual std::string error_event(const ApiError& error) const { return "data: " + render_error(error) + "\n\n"; }
  // Not streaming: one choice, and the whole body around the choices, which are joined by commas.
  virtual std::string choice(const ChoiceState& choice) = 0;
  virtual std::string body(std::string choices, const wire::Usage& usage) = 0;
  // An error before anything of the answer is out.
  virtual http::Response error_response(const ApiError& error) const { return api::error_response(error); }
  // Of an answer that is not streamed, without an error.
  virtual std::string content_type() const { return "application/json"; }
  // Of a stream that is bytes, neither events nor lines: its content type. An error breaks it off. Empty: it is one of
  // these.
  virtual std::string stream_type() const { return ""; }
  // Header fields of an answer without an error.
  virtual http::Headers headers() const { return {}; }
};

// Of an answer that is of no use in part. kCancelled: the request was aborted before its `what` was complete.
Status check_not_aborted(const ChoiceState& choice, std::string_view what);

// What an OpenAI answer shows besides texts.
struct ShownDetails {
  bool logprobs = false;
  bool tokens_as_ids = false;
  bool token_ids = false;
  bool prompt_logprobs = false;
  std::size_t top_logprobs = 0;                  // of generated tokens
  std::vector<std::vector<int32_t>> prompt_ids;  // with token_ids: of each prompt
  std::size_t choices_per_prompt = 1;            // that the client gets
  bool echo = false;                             // logprobs begin with those of the prompt
};

// The parts that the OpenAI formats share.
// ,"finish_reason": ... and its "matched_stop"; or null. `reason`: instead of the finish's own; empty: that.
void append_end(std::string& out, const wire::Finish* finish, std::string_view reason = {});
void append_integer(std::string& out, int64_t value);
void append_ids(std::string& out, const std::vector<int32_t>& ids);  // [1,2]
// Of a body or chunk with the request's id, from {"id": to "choices":[. `model`: the name that the client asked for.
std::string openai_head(std::string_view object, std::string_view id, std::string_view model, std::string_view version);
// `prefix` and 24 random hex digits.
std::string make_id(std::string_view prefix);
int64_t unix_seconds();

}  // namespace millrace::api
