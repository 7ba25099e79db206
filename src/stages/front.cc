#include "stages/front.h"

#include <thread>

#include "base/log.h"

namespace millrace {
namespace {

wire::TextDelta failed(ReqId id, const Status& status) {
  wire::TextDelta delta{.id = id};
  delta.finish = wire::Finish{.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()};
  return delta;
}

}  // namespace

Front::Front(FrontOptions options, ModelFacts model, TokenizerStage& tokenizer, std::unique_ptr<Inbox> inbox)
    : options_(options), model_(std::move(model)), tokenizer_(tokenizer), inbox_(std::move(inbox)) {
  stages_["scheduler"];
  stages_["detokenizer"];
}

// ---- requests
// ---------------------------------------------------------------------------------------------------------

ReqId Front::submit(GenerateRequest request, Sink sink) {
  const ReqId id{next_id_.fetch_add(1)};
  auto entry = std::make_shared<Entry>();
  entry->sink = std::move(sink);
  entry->deadline_ms = monotonic_ms() + options_.request_timeout_s * 1000;
  Status refused;
  {
    std::lock_guard lock(mutex_);
    const std::string reason = why_not_ready();
    if (!reason.empty()) {
      refused = Status(StatusCode::kUnavailable, "the engine is not ready: " + reason);
    } else if (table_.size() >= static_cast<std::size_t>(options_.max_requests)) {
      refused =
          error(StatusCode::kResourceExhausted, "{} requests are live, the limit; try again later", table_.size());
    } else {
      table_.emplace(id, entry);
    }
  }
  if (!refused.ok()) {
    entry->sink(failed(id, refused));
    return id;
  }
  Prompt prompt = std::move(request.prompt);
  Status posted = tokenizer_.post(std::move(prompt), [this, id, request = std::move(request)](auto ids) mutable {
    tokenized(id, std::move(request), std::move(ids));
  });
  if (!posted.ok()) end(id, posted);
  return id;
}

// Fills the token counts, or says why the request does not fit the context. Nothing is clamped in silence.
Status Front::resolve_lengths(const GenerateRequest& request, wire::TokenizedRequest& out) const {
  const auto prompt = static_cast<int64_t>(out.prompt.size());
  const int64_t context = model_.context_length;
  if (prompt == 0) return invalid_argument("the prompt has no tokens; wanted at least 1");
  if (prompt >= context) {
    return error(StatusCode::kTooLarge,
                 "This model's maximum context length is {} tokens. However, the prompt has {} tokens.", context,
                 prompt);
  }
  if (request.max_tokens && prompt + *request.max_tokens > context) {
    return error(
        StatusCode::kTooLarge,
        "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the prompt, {} "
        "for the completion).",
        context, prompt + *request.max_tokens, prompt, *request.max_tokens);
  }
  out.sampling.max_tokens = static_cast<int32_t>(request.max_tokens.value_or(static_cast<int32_t>(context - prompt)));
  return ok_status();
}

void Front::tokenized(ReqId id, GenerateRequest request, Result<std::vector<int32_t>> ids) {
  if (!ids.ok()) return end(id, ids.status());
  wire::TokenizedRequest out{.id = id, .prompt = std::move(ids).value(), .sampling = std::move(request.sampling)};
  out.extra_key = std::move(request.extra_key);
  out.priority = request.priority;
  out.timeout_ms = request.timeout_ms;
  out.queue_timeout_ms = request.queue_timeout_ms;
  if (Status status = resolve_lengths(request, out); !status.ok()) return end(id, status);
  Status sent;
  {
    // Under the table's lock, so that an abort either comes before and finds nothing to send, or comes after the
    // request.
    std::lock_guard lock(mutex_);
    auto found = table_.find(id);
    if (found == table_.end()) return;
    wire::Message message = std::move(out);
    sent = scheduler_ ? scheduler_->send(message) : Status(StatusCode::kUnavailable, "there is no scheduler");
    found->second->sent = sent.ok();
  }
  if (!sent.ok()) end(id, sent);
}

std::shared_ptr<Front::Entry> Front::find(ReqId id) const {
  std::lock_guard lock(mutex_);
  auto found = table_.find(id);
  return found == table_.end() ? nullptr : found->second;
}

void Front::deliver(const wire::TextDelta& delta) {
  auto entry = find(delta.id);
  if (!entry) return;
  if (delta.finish) {
    std::lock_guard lock(mutex_);
    table_.erase(delta.id);
  }
  {
    std::lock_guard lock(entry->mutex);
    if (entry->ended) return;
    entry->ended = delta.finish.has_value();
    entry->sink(delta);
  }
  // A stop string, a fault of the detokenizer or the front itself (see end()) ended it: the scheduler may not know yet,
  // and ignores ids that it ended. `sent` stays as it is once the entry has left the table.
  const bool early =
      delta.finish && (delta.finish->matched_text || delta.finish->reason >= wire::FinishReason::kAborted);
  if (early && entry->sent) send_abort(delta.id);
}

void Front::end(ReqId id, const Status& status) { deliver(failed(id, status)); }

void Front::abort(ReqId id) {
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    auto found = table_.find(id);
    if (found == table_.end()) return;
    entry = found->second;
    table_.erase(found);
  }
  if (entry->sent) send_abort(id);
  std::lock_guard lock(entry->mutex);
  entry->ended = true;
}

void Front::cancel(ReqId id) {
  wire::TextDelta delta{.id = id};
  delta.finish = wire::Finish{.reason = wire::FinishReason::kAborted};
  deliver(delta);
}

void Front::admin(wire::AdminAction /*action*/, std::string /*argument*/, int64_t /*timeout_ms*/,
                  std::function<void(std::vector<wire::AdminReply>)> done) {
  done({});
}

void Front::send_abort(ReqId id) {
  std::lock_guard lock(mutex_);
  if (!scheduler_) return;
  wire::Message message = wire::AbortRequest{id};
  if (Status status = scheduler_->send(message); !status.ok()) unsent_aborts_.push_back(id);
}

void Front::end_all(const Status& status) {
  std::vector<ReqId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : table_) ids.push_back(id);
  }
  for (ReqId id : ids) end(id, status);
}

void Front::tokenize(Prompt prompt, std::function<void(Result<TokenizeReply>)> done) {
  Status posted = tokenizer_.post(std::move(prompt), [done](Result<std::vector<int32_t>> ids) {
    if (!ids.ok()) return done(ids.status());
    done(TokenizeReply{std::move(ids).value()});
  });
  if (!posted.ok()) done(posted);
}

void Front::detokenize(std::vector<int32_t> ids, bool skip_special_tokens,
                       std::function<void(Result<std::string>)> done) {
  Status posted = tokenizer_.post_decode(std::move(ids), skip_special_tokens, done);
  if (!posted.ok()) done(posted);
}

// ---- stages
// -----------------------------------------------------------------------------------------------------------

void Front::connect_scheduler(std::shared_ptr<Outbox> scheduler, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  scheduler_ = std::move(scheduler);
  unsent_aborts_.clear();
  stages_["scheduler"] = {.expected = incarnation};
}

void Front::expect_stage(const std::string& stage, uint64_t incarnation) {
  std::lock_guard lock(mutex_);
  stages_[stage] = {.expected = incarnation};
}

void Front::stage_down(const std::string& stage, const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    StageView& view = stages_[stage];
    view.heard_ms = 0;
    view.expected = 0;  // incarnations count from 1: a late heartbeat must not raise the dead
    view.status = {.stage = stage, .state = wire::StageState::kFailed, .message = reason};
  }
  end_all(Status(StatusCode::kUnavailable, fmt::format("the {} stopped: {}", stage, reason)));
}

// Called with the lock held. Empty: ready.
std::string Front::why_not_ready() const {
  if (draining_.load()) return "shutting down";
  for (const auto& [name, view] : stages_) {
    const wire::StageStatus& status = view.status;
    if (view.heard_ms == 0) {
      return fmt::format("{}: {}", name, status.message.empty() ? "starting" : status.message);
    }
    if (status.state == wire::StageState::kLoading) {
      return fmt::format("{}: {} {:.0f}%", name, status.message, status.progress * 100);
    }
    if (status.state != wire::StageState::kReady)
      return fmt::format("{}: {}", name, wire::stage_state_name(status.state));
    const int64_t silent_ms = monotonic_ms() - view.heard_ms;
    if (silent_ms > kStageSilentMs) return fmt::format("{}: stalled, silent for {} ms", name, silent_ms);
  }
  return "";
}

Health Front::health() const {
  std::lock_guard lock(mutex_);
  Health health;
  health.reason = why_not_ready();
  health.ready = health.reason.empty();
  health.draining = draining_.load();
  for (const auto& [name, view] : stages_) health.stages.push_back(view.status);
  return health;
}

std::size_t Front::live_requests() const {
  std::lock_guard lock(mutex_);
  return table_.size();
}

bool Front::wait_idle(int timeout_ms) {
  const int64_t end_ms = monotonic_ms() + timeout_ms;
  while (live_requests() > 0 && monotonic_ms() < end_ms) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool idle = live_requests() == 0;
  end_all(Status(StatusCode::kUnavailable, "the server is shutting down"));
  return idle;
}

// ---- the front's thread
// -------------------------------------------------------------------------------------------------

void Front::sweep() {
  std::vector<ReqId> late, unsent;
  const int64_t now_ms = monotonic_ms();
  {
    std::lock_guard lock(mutex_);
    unsent.swap(unsent_aborts_);
    for (const auto& [id, entry] : table_) {
      if (entry->deadline_ms <= now_ms) late.push_back(id);
    }
  }
  for (ReqId id : unsent) send_abort(id);
  for (ReqId id : late) {
    end(id, error(StatusCode::kDeadline, "the request took more than {} s, the limit", options_.request_timeout_s));
  }
}

void Front::run() {
  int64_t next_sweep_ms = monotonic_ms() + kHeartbeatMs;
  while (!stop_requested()) {
    if (monotonic_ms() >= next_sweep_ms) {
      sweep();
      next_sweep_ms = monotonic_ms() + kHeartbeatMs;
    }
    auto message = inbox_->receive(kHeartbeatMs / 5);
    if (!message) continue;
    if (auto* text = std::get_if<wire::TextBatch>(&*message)) {
      for (const wire::TextDelta& delta : text->deltas) deliver(delta);
    } else if (auto* status = std::get_if<wire::StageStatus>(&*message)) {
      std::lock_guard lock(mutex_);
      auto found = stages_.find(status->stage);
      if (found == stages_.end() || found->second.expected != status->incarnation) continue;
      found->second.heard_ms = monotonic_ms();
      found->second.status = std::move(*status);
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the front", message->index());
    }
  }
}

}  // namespace millrace
