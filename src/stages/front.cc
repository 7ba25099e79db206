#include "stages/front.h"

#include <algorithm>
#include <thread>

#include "base/log.h"
#include "base/trace.h"
#include "stages/generating/lengths.h"

namespace millrace {
namespace {

wire::TextDelta failed(ReqId id, const Status& status) {
  wire::TextDelta delta{.id = id};
  delta.finish = wire::Finish{.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()};
  return delta;
}

// The shorter of two limits, where 0 is none.
int64_t shorter(int64_t a, int64_t b) { return a > 0 && b > 0 ? std::min(a, b) : std::max(a, b); }

}  // namespace

std::string replica_name(int replica, int replicas) {
  return replicas == 1 ? "scheduler" : fmt::format("scheduler-{}", replica);
}

Front::Front(FrontOptions options, ModelFacts model, TokenizerStage& tokenizer, std::unique_ptr<Inbox> inbox)
    : options_(std::move(options)),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      inbox_(std::move(inbox)),
      router_(options_.replicas, options_.replica_policy),
      profile_(options_.profile_folder) {
  for (int i = 0; i < options_.replicas; ++i) {
    replicas_.push_back({.name = replica_name(i, options_.replicas)});
    stages_[replicas_.back().name];
  }
  stages_["detokenizer"];
}

Front::~Front() {
  if (profile_writer_.joinable()) profile_writer_.join();
}

// ---- requests
// ---------------------------------------------------------------------------------------------------------

ReqId Front::submit(GenerateRequest request, Sink sink) {
  const ReqId id{next_id_.fetch_add(1)};
  auto entry = std::make_shared<Entry>();
  entry->sink = std::move(sink);
  entry->timeout_ms = shorter(options_.request_timeout_s * 1000, request.timeout_ms);
  entry->deadline_ms = monotonic_ms() + entry->timeout_ms;
  Status refused;
  {
    std::lock_guard lock(mutex_);
    const std::string reason = why_not_ready();
    if (request.replica && (*request.replica < 0 || *request.replica >= options_.replicas)) {
      refused =
          invalid_argument("the data-parallel rank is {}; wanted 0 to {}", *request.replica, options_.replicas - 1);
    } else if (!reason.empty()) {
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
  trace::async_begin("request", "front", id.value);
  const SharedPrompt prompt = std::exchange(request.prompt, {});
  Status posted = tokenizer_.post(
      prompt,
      [this, id, request = std::move(request)](auto ids) mutable { tokenized(id, std::move(request), std::move(ids)); },
      [this, id] { return is_live(id); });
  if (!posted.ok()) end(id, posted);
  return id;
}

// Fills the token counts, or says why the request does not fit the context.
Status Front::resolve_lengths(const GenerateRequest& request, wire::TokenizedRequest& out) const {
  ASSIGN_OR_RETURN(out.sampling.max_tokens, resolve_max_tokens(static_cast<int64_t>(out.prompt.size()),
                                                               request.max_tokens, model_.context_length));
  return ok_status();
}

void Front::tokenized(ReqId id, GenerateRequest request, Result<std::vector<int32_t>> ids) {
  if (!ids.ok()) return end(id, ids.status());
  wire::TokenizedRequest out{.id = id, .prompt = std::move(ids).value(), .sampling = std::move(request.sampling)};
  out.extra_key = std::move(request.extra_key);
  out.priority = request.priority;
  out.timeout_ms = request.timeout_ms;
  out.queue_timeout_ms = shorter(options_.queue_timeout_ms, request.queue_timeout_ms);
  if (Status status = resolve_lengths(request, out); !status.ok()) return end(id, status);
  ReplicaRouter::Prefix prefix;
  if (router_.wants_prefix()) prefix = ReplicaRouter::prefix_of(out.prompt, out.extra_key);
  const auto tokens = static_cast<int64_t>(out.prompt.size());
  Status sent;
  {
    // Under the table's lock, so that an abort either comes before and finds nothing to send, or comes after the
    // request.
    std::lock_guard lock(mutex_);
    auto found = table_.find(id);
    if (found == table_.end()) return;
    const Result<int> replica = choose_replica(request, prefix);
    wire::Message message = std::move(out);
    sent = replica.ok() ? replicas_[static_cast<std::size_t>(*replica)].outbox->send(message) : replica.status();
    if (sent.ok()) {
      Entry& entry = *found->second;
      entry.replica = *replica;
      entry.prompt = entry.tokens = tokens;
      router_.begin(*replica, prefix, tokens);
    }
  }
  if (!sent.ok()) end(id, sent);
}

// With the lock held. One that is connected and silent for the moment is better than none.
Result<int> Front::choose_replica(const GenerateRequest& request, const ReplicaRouter::Prefix& prefix) {
  std::vector<bool> usable = serving();
  if (request.replica) {
    const Replica& wanted = replicas_[static_cast<std::size_t>(*request.replica)];
    if (!wanted.up) return error(StatusCode::kUnavailable, "the {} is down", wanted.name);
    return *request.replica;
  }
  if (std::find(usable.begin(), usable.end(), true) == usable.end()) {
    for (std::size_t i = 0; i < usable.size(); ++i) usable[i] = replicas_[i].up;
  }
  if (const auto replica = router_.choose(prefix, usable)) return *replica;
  return Status(StatusCode::kUnavailable, "there is no scheduler");
}

// With the lock held, when the entry has left the table.
void Front::leave(Entry& entry) {
  if (entry.replica >= 0) router_.end(entry.replica, entry.tokens);
  entry.tokens = 0;
}

// The entry of a delta, whose load grows; with its last one, the entry leaves the table.
std::shared_ptr<Front::Entry> Front::take(const wire::TextDelta& delta) {
  std::lock_guard lock(mutex_);
  auto found = table_.find(delta.id);
  if (found == table_.end()) return nullptr;
  std::shared_ptr<Entry> entry = found->second;
  if (delta.finish) {
    table_.erase(found);
    leave(*entry);
  } else if (entry->replica >= 0) {
    const int64_t tokens = entry->prompt + delta.usage.completion_tokens;
    router_.grow(entry->replica, tokens - entry->tokens);
    entry->tokens = tokens;
  }
  return entry;
}

// An id that the model does not have is damage on its way: an answer without it would look whole.
std::optional<int32_t> Front::outside_vocabulary(const wire::TextDelta& delta) const {
  for (const int32_t id : delta.tokens) {
    if (id < 0 || (model_.vocab_size > 0 && id >= model_.vocab_size)) return id;
  }
  return std::nullopt;
}

void Front::deliver(const wire::TextDelta& delta) {
  if (const auto id = outside_vocabulary(delta)) {
    return end(delta.id, internal_error("the engine sent token id {}; wanted 0 to {}", *id, model_.vocab_size - 1));
  }
  auto entry = take(delta);
  if (!entry) return;
  {
    std::lock_guard lock(entry->mutex);
    if (entry->ended) return;
    entry->ended = delta.finish.has_value();
    entry->sink(delta);
  }
  if (!delta.finish) return;
  trace::async_end("request", "front", delta.id.value);
  // A stop string, a fault of the detokenizer or the front itself (see end()) ended it: the scheduler may not know yet,
  // and ignores ids that it ended.
  const bool early = delta.finish->matched_text || delta.finish->reason >= wire::FinishReason::kAborted;
  if (early && entry->replica >= 0) send_abort(entry->replica, delta.id);
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
    leave(*entry);
  }
  trace::async_end("request", "front", id.value);
  if (entry->replica >= 0) send_abort(entry->replica, id);
  std::lock_guard lock(entry->mutex);
  entry->ended = true;
}

void Front::cancel(ReqId id) {
  wire::TextDelta delta{.id = id};
  delta.finish = wire::Finish{.reason = wire::FinishReason::kAborted};
  deliver(delta);
}

void Front::send_abort(int replica, ReqId id) {
  std::lock_guard lock(mutex_);
  Replica& to = replicas_[static_cast<std::size_t>(replica)];
  if (!to.outbox) return;
  wire::Message message = wire::AbortRequest{id};
  if (Status status = to.outbox->send(message); !status.ok()) to.unsent_aborts.push_back(id);
}

// Of one replica, or all.
void Front::end_all(const Status& status, std::optional<int> replica) {
  std::vector<ReqId> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, entry] : table_) {
      if (!replica || entry->replica == *replica) ids.push_back(id);
    }
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

bool Front::is_live(ReqId id) const {
  std::lock_guard lock(mutex_);
  return table_.contains(id);
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

// With the lock held. What a stage said while this process was stopped still waits in the inbox: nobody was silent.
void Front::forgive_gap(int64_t now_ms) {
  const int64_t gap_ms = now_ms - std::exchange(swept_ms_, now_ms);
  if (gap_ms < kStageSilentMs / 2) return;
  for (auto& [name, view] : stages_) {
    if (view.heard_ms != 0) view.heard_ms += gap_ms;
    view.since_ms += gap_ms;
  }
}

void Front::sweep() {
  std::vector<std::pair<int, ReqId>> unsent;
  std::vector<std::pair<ReqId, int64_t>> late;
  const int64_t now_ms = monotonic_ms();
  {
    std::lock_guard lock(mutex_);
    forgive_gap(now_ms);
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      for (ReqId id : replicas_[i].unsent_aborts) unsent.emplace_back(static_cast<int>(i), id);
      replicas_[i].unsent_aborts.clear();
    }
    for (const auto& [id, entry] : table_) {
      if (entry->deadline_ms <= now_ms) late.emplace_back(id, entry->timeout_ms);
    }
  }
  for (const auto& [replica, id] : unsent) send_abort(replica, id);
  for (const auto& [id, timeout_ms] : late) {
    end(id, error(StatusCode::kDeadline, "the request took more than {:g} s, the limit",
                  static_cast<double>(timeout_ms) / 1000));
  }
  report_hung();
}

void Front::run() {
  trace::name_thread("front");
  swept_ms_ = monotonic_ms();
  int64_t next_sweep_ms = swept_ms_ + kHeartbeatMs;
  while (!stop_requested()) {
    if (monotonic_ms() >= next_sweep_ms) {
      sweep();
      next_sweep_ms = monotonic_ms() + kHeartbeatMs;
    }
    finish_orders();
    auto message = inbox_->receive(kHeartbeatMs / 5);
    if (!message) continue;
    if (auto* text = std::get_if<wire::TextBatch>(&*message)) {
      trace::Span span("deliver", "front");
      span.note("requests", static_cast<int64_t>(text->deltas.size()));
      for (const wire::TextDelta& delta : text->deltas) deliver(delta);
    } else if (auto* status = std::get_if<wire::StageStatus>(&*message)) {
      hear(std::move(*status));
    } else if (auto* reply = std::get_if<wire::AdminReply>(&*message)) {
      hear_reply(std::move(*reply));
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the front", message->index());
    }
  }
  finish_orders(true);
  if (profile_writer_.joinable()) profile_writer_.join();  // what it answers to may not outlive this thread
}

}  // namespace millrace
