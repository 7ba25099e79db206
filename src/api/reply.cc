#include "api/reply.h"

#include <chrono>
#include <random>

#include "api/fields.h"
#include "base/json.h"

namespace millrace::api {

Reply::Reply(http::Server& server, Engine& engine, http::ResponderPtr responder, std::unique_ptr<ReplyFormat> format,
             ReplyOptions options, std::size_t choices)
    : server_(server),
      engine_(engine),
      responder_(std::move(responder)),
      format_(std::move(format)),
      options_(options),
      choices_(choices) {}

void Reply::start(std::vector<GenerateRequest> requests) {
  CHECK(requests.size() == choices_.size());
  auto self = shared_from_this();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const ReqId id =
        engine_.submit(std::move(requests[i]), [self, i](const wire::TextDelta& d) { self->on_delta(i, d); });
    std::lock_guard lock(mutex_);
    choices_[i].id = id;
    if (ended_) {  // refused while we were still submitting
      server_.post([self] { self->abort_all(); });
      break;
    }
  }
  responder_->on_disconnect([weak = weak_from_this()] {
    auto reply = weak.lock();
    if (!reply) return;
    {
      std::lock_guard lock(reply->mutex_);
      reply->ended_ = true;
    }
    reply->abort_all();
  });
}

void Reply::abort_all() {
  std::vector<ReqId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const Choice& choice : choices_) {
      if (!choice.finish && choice.id.value) ids.push_back(choice.id);
    }
  }
  for (ReqId id : ids) engine_.abort(id);
}

void Reply::on_delta(std::size_t index, const wire::TextDelta& delta) {
  std::lock_guard lock(mutex_);
  Choice& choice = choices_[index];
  choice.accepted |= delta.accepted;
  choice.usage = delta.usage;
  if (delta.finish) choice.finish = delta.finish;
  if (ended_) return;
  if (delta.finish && delta.finish->reason >= wire::FinishReason::kAborted) return fail(*delta.finish);
  (options_.stream ? choice.held : choice.text) += delta.text;
  std::string out;
  if (options_.stream) stream_news(out);
  bool all = true;
  for (const Choice& each : choices_) all &= each.finish.has_value();
  if (all) return complete(out);
  if (!out.empty()) responder_->write(out);
}

// Headers and what waited go out once every choice was accepted; from then on news goes out as it comes.
void Reply::stream_news(std::string& out) {
  if (!started_) {
    for (const Choice& choice : choices_) {
      if (!choice.accepted) return;
    }
    started_ = true;
    responder_->start_sse();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
      append_event(out, format_->opening(static_cast<int>(i)), &choices_[i]);
    }
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) stream_choice(i, out);
}

void Reply::stream_choice(std::size_t index, std::string& out) {
  Choice& choice = choices_[index];
  const int number = static_cast<int>(index);
  if (!choice.held.empty()) {
    append_event(out, format_->delta(number, choice.held), &choice);
    choice.held.clear();
  }
  if (choice.finish && !choice.closed) {
    choice.closed = true;
    append_event(out, format_->closing(number, *choice.finish), &choice);
  }
}

// The formats end their objects with '}': the usage member is put before it, where the client asked for one.
void Reply::append_event(std::string& out, std::string_view json, const Choice* choice) const {
  if (json.empty()) return;
  out += "data: ";
  if (choice && (options_.include_usage || options_.continuous_usage)) {
    out += json.substr(0, json.size() - 1);
    out += ",\"usage\":";
    if (options_.continuous_usage) {
      append_usage(out, choice->usage);
    } else {
      out += "null";
    }
    out += '}';
  } else {
    out += json;
  }
  out += "\n\n";
}

void Reply::complete(std::string& out) {
  ended_ = true;
  if (options_.stream) {
    if (options_.include_usage) append_event(out, format_->usage(total_usage()), nullptr);
    out += "data: [DONE]\n\n";
    responder_->write(out);
    responder_->end();
    return;
  }
  std::string choices;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (i) choices += ',';
    choices += format_->choice(static_cast<int>(i), choices_[i].text, *choices_[i].finish);
  }
  responder_->send({.body = format_->body(choices, total_usage())});
}

void Reply::fail(const wire::Finish& finish) {
  ended_ = true;
  const bool aborted = finish.reason == wire::FinishReason::kAborted;
  const ApiError error = field_error(aborted ? Status(StatusCode::kUnavailable, "the request was aborted")
                                             : Status(finish.code, finish.message));
  if (started_) {
    responder_->write("data: " + render_error(error) + "\n\n");
    responder_->end();
  } else {
    responder_->send(error_response(error));
  }
  // Not from here: a sink must not call back into the engine.
  if (choices_.size() > 1) server_.post([self = shared_from_this()] { self->abort_all(); });
}

wire::Usage Reply::total_usage() const {
  wire::Usage total;
  for (const Choice& choice : choices_) {
    total.prompt_tokens += choice.usage.prompt_tokens;
    total.completion_tokens += choice.usage.completion_tokens;
    total.cached_tokens += choice.usage.cached_tokens;
  }
  return total;
}

std::string_view finish_reason(const wire::Finish& finish) {
  return finish.reason == wire::FinishReason::kLength ? "length" : "stop";
}

void append_matched_stop(std::string& out, const wire::Finish& finish) {
  out += "\"matched_stop\":";
  if (finish.matched_token) {
    out += std::to_string(*finish.matched_token);
  } else if (finish.matched_text) {
    json_append_string(out, *finish.matched_text);
  } else {
    out += "null";
  }
}

void append_usage(std::string& out, const wire::Usage& usage) {
  fmt::format_to(std::back_inserter(out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},\"prompt_tokens_details\":{{"
                 "\"cached_tokens\":{}}}}}",
                 usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
                 usage.cached_tokens);
}

std::string make_id(std::string_view prefix) {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) | std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, generator(), generator() & 0xFFFFFFFF);
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace millrace::api
