#include "api/reply.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "api/choices.h"
#include "api/fields.h"
#include "api/logprobs.h"
#include "api/prompt_preview.h"
#include "base/status.h"
#include "text/tools/output_event.h"

namespace millrace::api {
namespace {

constexpr std::string_view kLinesStream = "application/x-ndjson";

std::vector<float> values_of(const wire::Embedding& embedding) {
  std::vector<float> out(embedding.values.bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), embedding.values.bytes.data(), out.size() * sizeof(float));
  return out;
}

}  // namespace

Reply::Reply(ApiContext& context, http::ResponderPtr responder, std::unique_ptr<ReplyFormat> format,
             ReplyOptions options)
    : server_(context.server),
      engine_(context.engine),
      state_(context.state),
      responder_(std::move(responder)),
      format_(std::move(format)),
      options_(options),
      memory_(std::make_shared<AnswerShare>(std::shared_ptr<AnswerMemory>(state_, &state_->answers))) {
  CHECK(options_.best <= options_.choices_per_prompt);
}

Reply::~Reply() { leave(); }

void Reply::start(std::vector<GenerateRequest> requests, std::vector<RequestNames::Name> names,
                  std::vector<std::string> echo) {
  CHECK(!requests.empty() && requests.size() % options_.choices_per_prompt == 0);
  auto self = shared_from_this();
  std::lock_guard submitting(submit_mutex_);
  CHECK(choices_.empty());  // called once
  choices_ = std::vector<Choice>(requests.size());
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    choices_[i].reply = this;
    choices_[i].state.index = static_cast<int>(i);
    if (!echo.empty()) choices_[i].state.text = std::move(echo[i]);
    choices_[i].fresh = !choices_[i].state.text.empty();
  }
  server_span_ = state_->record.begin(responder_->label(), elapsed_seconds());
  if (server_span_) {
    for (GenerateRequest& request : requests) request.traceparent = server_span_->traceparent();
  }
  if (state_->live.shows_prompts()) {
    for (RequestNames::Name& name : names) {
      if (name.first < requests.size()) name.prompt = prompt_preview(*requests[name.first].prompt);
    }
  }
  Status status = check_request_count(requests.size(), engine_.model());
  if (status.ok()) status = state_->live.add(names, self);
  if (!status.ok()) {
    state_->requests.rejected(status.code());
    state_->record.refused(responder_->label(), std::exchange(server_span_, {}), engine_.model().name, status);
    responder_->send(format_->error_response(field_error(status)));
    return;
  }
  names_ = std::move(names);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    // The answer to it is the choice, which the reply owns.
    const ReqId id = engine_.submit(std::move(requests[i]), std::shared_ptr<TextAnswer>(self, &choices_[i]));
    std::lock_guard lock(mutex_);
    choices_[i].id = id;
    if (ended_) {  // refused while we were still submitting
      server_.post([self] { self->abort_all(); });
      break;
    }
  }
  responder_->on_disconnect([weak = weak_from_this()] {
    if (auto reply = weak.lock()) reply->client_left();
  });
}

void Reply::client_left() {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(ended_, true)) note_end("disconnected");
    leave();
  }
  state_->requests.disconnected(running(0, SIZE_MAX).size());
  abort_all();
}

std::size_t Reply::cancel(std::size_t first, std::size_t count) {
  std::lock_guard submitted(submit_mutex_);
  const std::vector<ReqId> ids = running(first, count);
  state_->requests.cancelled(ids.size());
  for (ReqId id : ids) engine_.cancel(id);
  return ids.size();
}

void Reply::abort_all() {
  for (ReqId id : running(0, SIZE_MAX)) engine_.abort(id);
}

std::vector<ReqId> Reply::running(std::size_t first, std::size_t count) {
  std::lock_guard lock(mutex_);
  std::vector<ReqId> ids;
  for (std::size_t i = first; i < choices_.size() && i - first < count; ++i) {
    if (!choices_[i].state.finish && choices_[i].id.value) ids.push_back(choices_[i].id);
  }
  return ids;
}

// Called with the lock held, or from the destructor.
void Reply::leave() {
  state_->live.remove(names_);
  names_.clear();
}

// Called with the lock held.
void Reply::note_end(std::string_view finish) {
  RequestFigures figures{.usage = total_usage(), .total_seconds = elapsed_seconds()};
  for (const Choice& choice : choices_) {
    const double first = choice.state.first_token_seconds;
    if (first == 0 || (figures.first_seconds > 0 && first >= figures.first_seconds)) continue;
    figures.first_seconds = first;
    figures.accepted_seconds = std::min(choice.accepted_at_s, first);
    figures.usage.transfer = choice.state.usage.transfer;
    // Its pages were waited for before the scheduler had it, and its queue's time counts from before that.
    const double fetched = figures.usage.transfer ? figures.usage.transfer->seconds : 0;
    const double queued = std::max(0.0, choice.state.usage.queue_seconds - fetched);
    figures.admitted_seconds = std::min(queued, first - figures.accepted_seconds);
  }
  state_->record.ended(responder_->label(), server_span_, engine_.model().name, figures, finish);
}

double Reply::elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

void Reply::on_text(Choice& choice, const wire::TextDelta& delta) {
  std::lock_guard lock(mutex_);
  if (delta.accepted && !std::exchange(choice.accepted, true)) {
    choice.accepted_at_s = elapsed_seconds();
    if (!ended_) format_->accepted();
  }
  if (delta.finish) choice.state.finish = delta.finish;
  if (ended_) return;
  if (delta.finish && delta.finish->reason == wire::FinishReason::kError) return fail(choice, *delta.finish);
  if (Status status = absorb(choice, delta); !status.ok()) {
    return fail(choice, {.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()});
  }
  bool all = true;
  for (const Choice& each : choices_) all &= each.state.finish.has_value();
  // The end of such a stream repeats all of it. Megabytes take long to write, and this thread serves all requests.
  if (all && options_.stream && options_.retained && memory_->bytes() > kInlineAnswerBytes) {
    ended_ = true;
    leave();
    return server_.post_aside([self = shared_from_this()] { self->end_stream(); });
  }
  std::string out;
  if (options_.stream) {
    out.reserve(kUsualEventBytes);
    if (Status status = stream_events(out); !status.ok()) {
      return fail(choice, {.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()});
    }
  }
  if (all) return complete(out);
  if (!out.empty()) responder_->write(out);
}

Status Reply::absorb(Choice& choice, const wire::TextDelta& delta) {
  ChoiceState& state = choice.state;
  RETURN_IF_ERROR(memory_->add(bytes_of(delta)));
  // A finish that the coordinator makes by itself knows no counts.
  if (delta.usage.prompt_tokens > 0) {
    state_->requests.generated(std::max(0, delta.usage.completion_tokens - state.usage.completion_tokens));
    if (state.usage.completion_tokens == 0 && delta.usage.completion_tokens > 0) {
      state.first_token_seconds = elapsed_seconds();
    }
    auto transfer = std::move(state.usage.transfer);
    state.usage = delta.usage;
    if (!state.usage.transfer) state.usage.transfer = std::move(transfer);
  }
  if (delta.weight_version) state.weight_version = delta.weight_version;
  extend_spans(state.weight_spans, delta.weight_version, state.usage.completion_tokens);
  state.text += delta.text;
  for (const wire::OutputEvent& event : delta.events) add_event(state.events, event.kind, event.text);
  state.tokens.insert(state.tokens.end(), delta.tokens.begin(), delta.tokens.end());
  state.logprobs.insert(state.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  state.prompt_logprobs.insert(state.prompt_logprobs.end(), delta.prompt_logprobs.begin(), delta.prompt_logprobs.end());
  if (delta.embedding) state.embedding = values_of(*delta.embedding);
  if (delta.finish && delta.finish->matched_token) state.tokens.push_back(*delta.finish->matched_token);
  if (delta.finish) state.elapsed_seconds = elapsed_seconds();
  const bool more_tokens = options_.token_events && !(delta.tokens.empty() && delta.prompt_logprobs.empty());
  choice.fresh |= delta.finish || more_tokens || !delta.text.empty() || !delta.events.empty();
  return ok_status();
}

void Reply::begin_stream(std::string& out) {
  started_ = true;
  if (const std::string type = format_->stream_type(); !type.empty()) {
    responder_->start_stream(type, format_->headers());
  } else if (format_->stream_form() == StreamForm::kLines) {
    responder_->start_stream(std::string(kLinesStream), format_->headers());
  } else {
    responder_->start_sse(format_->headers());
  }
  for (const Choice& choice : choices_) {
    EventWriter events(out, members(choice), format_->stream_form());
    format_->opening(choice.state, events);
  }
}

// Headers and what waited go out once every choice was accepted; from then on output goes out as it comes.
Status Reply::stream_events(std::string& out) {
  if (!started_) {
    for (const Choice& choice : choices_) {
      if (!choice.accepted && !choice.state.finish) return ok_status();
    }
    begin_stream(out);
  }
  bool waits = options_.cumulative || options_.retained;  // some choice keeps what it has
  for (Choice& choice : choices_) {
    RETURN_IF_ERROR(stream_choice(choice, out));
    waits |= choice.fresh;
  }
  if (!waits) memory_->set(0);
  return ok_status();
}

Status Reply::stream_choice(Choice& choice, std::string& out) {
  ChoiceState& state = choice.state;
  if (!choice.fresh || choice.closed) return ok_status();
  if (options_.prompt_first && state.tokens.empty() && choice.sent_tokens == 0 && !state.finish) return ok_status();
  const bool repeated = options_.cumulative && !state.finish;  // by the next event
  if (repeated && responder_->pending_bytes() + out.size() > kMaxUnsentRepeatBytes) return ok_status();
  choice.fresh = false;
  choice.closed = state.finish.has_value();
  if (choice.closed) RETURN_IF_ERROR(format_->finish(state));
  state.elapsed_seconds = elapsed_seconds();
  measure(choice);
  EventWriter events(out, members(choice), format_->stream_form());
  format_->events(state, events);
  if (options_.cumulative && events.largest() > kMaxEventBytes) {
    return error(StatusCode::kUnsupported,
                 "a cumulative event has {} bytes; wanted at most {}: set stream_output to get each part once",
                 events.largest(), kMaxEventBytes);
  }
  if (!options_.cumulative) {
    state.text.clear();
    state.events.clear();
    state.tokens.clear();
    state.logprobs.clear();
    state.prompt_logprobs.clear();
  }
  return ok_status();
}

// What the client is about to see, for the histograms.
void Reply::measure(Choice& choice) {
  const ChoiceState& state = choice.state;
  const int32_t tokens = state.usage.completion_tokens - choice.sent_tokens;
  if (tokens > 0) {
    if (choice.sent_tokens == 0) {
      state_->requests.first_chunk(state.elapsed_seconds);
      if (tokens > 1) state_->requests.next_chunk(0, tokens - 1);
    } else {
      state_->requests.next_chunk(state.elapsed_seconds - choice.sent_at_s, tokens);
    }
    choice.sent_at_s = state.elapsed_seconds;
    choice.sent_tokens = state.usage.completion_tokens;
  }
  if (state.finish) state_->requests.ended(*state.finish, state.usage, state.elapsed_seconds);
}

// What each event has besides its choice: what the client asked to see of the usage, and with the end the metadata.
std::string Reply::members(const Choice& choice) const {
  std::string out = choice.state.finish ? metadata({&choice.state}) : "";
  if (!options_.continuous_usage) return options_.include_usage ? out + ",\"usage\":null" : out;
  out += ",\"usage\":";
  format_->write_usage(out, choice.state.usage);
  return out;
}

std::string Reply::metadata(const std::vector<const ChoiceState*>& choices) const {
  const WeightControl* weights = engine_.weights();
  if (!options_.metadata || weights == nullptr || choices.empty()) return "";
  std::string out = ",\"metadata\":{\"weight_version\":";
  append_version(out, weights, choices.back()->weight_version);
  out += ",\"weight_versions\":[";
  for (const ChoiceState* choice : choices) {
    append_spans(out, weights, choice->weight_spans, choice->weight_version, choice->usage.completion_tokens,
                 fmt::format(",\"index\":{}", choice->index));
  }
  return out + "]}";
}

void Reply::complete(std::string& out) {
  ended_ = true;
  leave();
  if (options_.stream) return write_end(out);
  note_end(reason_name(choices_.front().state.finish->reason));
  for (const Choice& choice : choices_) {
    const ChoiceState& state = choice.state;
    state_->requests.ended(*state.finish, state.usage, state.elapsed_seconds);
  }
  // Nothing changes any more. Megabytes take long to write, and this thread serves all requests.
  if (memory_->bytes() <= kInlineAnswerBytes) return send_body();
  server_.post_aside([self = shared_from_this()] { self->send_body(); });
}

void Reply::end_stream() {
  std::lock_guard lock(mutex_);
  std::string out;
  if (Status status = stream_events(out); !status.ok()) {
    return fail(choices_.front(), {wire::FinishReason::kError, {}, {}, status.code(), status.message()});
  }
  write_end(out);
}

void Reply::write_end(std::string& out) {
  CHECK(ended_ && choices_.front().state.finish);
  note_end(reason_name(choices_.front().state.finish->reason));
  if (options_.include_usage) out += "data: " + format_->usage(total_usage()) + "\n\n";
  out += format_->last_event();
  responder_->end(out);
}

void Reply::send_body() {
  for (const Choice& choice : choices_) {
    const Status status = format_->finish(choice.state);
    if (!status.ok()) return static_cast<void>(responder_->send(format_->error_response(field_error(status))));
  }
  std::vector<const ChoiceState*> shown;
  std::string body = format_->body(best_choices(shown), total_usage());
  if (const std::string more = metadata(shown); !more.empty()) body.insert(body.rfind('}'), more);
  memory_->set(body.size());
  http::Response response{.headers = format_->headers(), .content_type = format_->content_type()};
  response.body = std::move(body);
  response.counted = std::move(memory_);
  responder_->send(std::move(response));
}

// The choices that the client gets, joined by commas: all, or of each prompt the likeliest, best first. What was most
// of a choice is freed when it is written.
std::string Reply::best_choices(std::vector<const ChoiceState*>& shown) {
  std::string out;
  out.reserve(memory_->bytes());  // grown by doubling, it would be there twice for a while
  int index = 0;
  const std::size_t group = options_.choices_per_prompt;
  const bool ranked = options_.best != 0 && options_.best < group;
  for (std::size_t first = 0; first < choices_.size(); first += group) {
    std::vector<std::size_t> ranking(std::min(group, choices_.size() - first));
    std::iota(ranking.begin(), ranking.end(), first);
    if (ranked) {
      std::vector<double> mean(choices_.size());
      for (std::size_t i : ranking) mean[i] = mean_logprob(choices_[i].state.logprobs);
      std::stable_sort(ranking.begin(), ranking.end(), [&](std::size_t a, std::size_t b) { return mean[a] > mean[b]; });
      ranking.resize(options_.best);
    }
    for (std::size_t i : ranking) {
      if (index) out += ',';
      choices_[i].state.index = index++;
      out += format_->choice(choices_[i].state);
      shown.push_back(&choices_[i].state);
      choices_[i].state.logprobs = choices_[i].state.prompt_logprobs = {};
    }
  }
  return out;
}

void Reply::fail(const Choice& choice, const wire::Finish& finish) {
  ended_ = true;
  leave();
  if (!choice.accepted) {
    state_->record.refused(responder_->label(), std::exchange(server_span_, {}), engine_.model().name,
                           Status(finish.code, finish.message));
  } else {
    note_end(finish.message.empty() ? "error" : fmt::format("error ({})", finish.message));
  }
  if (choice.accepted) {
    state_->requests.ended(finish, choice.state.usage, elapsed_seconds());
  } else {
    state_->requests.rejected(finish.code);
  }
  const ApiError error = field_error(Status(finish.code, finish.message));
  if (started_ && !format_->stream_type().empty()) {
    responder_->abort();
  } else if (started_) {
    responder_->end(format_->error_event(error));
  } else {
    responder_->send(format_->error_response(error));
  }
  // Not from here: abort_all() takes mutex_, which the caller holds.
  server_.post([self = shared_from_this()] { self->abort_all(); });
}

// A prompt counts once, however many choices it has; so do its cached tokens: those that were there before the first of
// its choices computed the rest.
wire::Usage Reply::total_usage() const {
  wire::Usage total;
  const std::size_t group = options_.choices_per_prompt;
  for (std::size_t first = 0; first < choices_.size(); first += group) {
    int32_t prompt = 0, cached = INT32_MAX;
    for (std::size_t i = first; i < std::min(first + group, choices_.size()); ++i) {
      const wire::Usage& usage = choices_[i].state.usage;
      total.completion_tokens += usage.completion_tokens;
      total.reasoning_tokens += usage.reasoning_tokens;
      total.transferred_tokens += usage.transferred_tokens;
      if (usage.prompt_tokens == 0) continue;
      prompt = usage.prompt_tokens;
      cached = std::min(cached, usage.cached_tokens);
    }
    total.prompt_tokens += prompt;
    total.cached_tokens += prompt ? cached : 0;
  }
  return total;
}

}  // namespace millrace::api
