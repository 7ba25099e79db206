#include "stages/detokenizer_stage.h"

#include <thread>

#include "base/log.h"

namespace millrace {

DetokenizerStage::DetokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Inbox> inbox,
                                   std::shared_ptr<Outbox> front, uint64_t incarnation)
    : tokenizer_(std::move(tokenizer)), inbox_(std::move(inbox)), front_(std::move(front)), incarnation_(incarnation) {}

void DetokenizerStage::run() {
  int64_t next_beat_ms = monotonic_ms();
  while (!stop_requested()) {
    if (monotonic_ms() >= next_beat_ms) {
      heartbeat();
      next_beat_ms = monotonic_ms() + kHeartbeatMs;
    }
    // A front that takes nothing more makes us wait with reading, which in turn makes the scheduler wait.
    if (!front_.flush() && front_.full()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    auto message = inbox_->receive(kHeartbeatMs / 5);
    if (!message) continue;
    if (auto* batch = std::get_if<wire::TokenBatch>(&*message)) {
      wire::TextBatch text = translate(*batch);
      if (!text.deltas.empty()) front_.send(std::move(text));
    } else if (auto* status = std::get_if<wire::StageStatus>(&*message)) {
      hear_scheduler(*status);
      front_.send(std::move(*message));
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the detokenizer", message->index());
    }
  }
  front_.flush();
}

// A new scheduler knows nothing of the requests that the dead one left behind. The first one heard takes nothing away,
// and neither does late news of an old one.
void DetokenizerStage::hear_scheduler(const wire::StageStatus& status) {
  if (status.stage != "scheduler" || status.incarnation <= scheduler_) return;
  if (scheduler_ != 0) states_.clear();
  scheduler_ = status.incarnation;
}

void DetokenizerStage::heartbeat() {
  wire::StageStatus status;
  status.stage = "detokenizer";
  status.incarnation = incarnation_;
  status.state = wire::StageState::kReady;
  status.steps = batches_;
  status.running = static_cast<int32_t>(states_.size());
  front_.send_unless_full(std::move(status));
}

wire::TextBatch DetokenizerStage::translate(const wire::TokenBatch& batch) {
  ++batches_;
  wire::TextBatch text;
  for (const wire::TokenDelta& delta : batch.deltas) {
    if (auto out = translate(delta)) text.deltas.push_back(std::move(*out));
  }
  return text;
}

// Makes the state that `delta.start` asks for. A failure ends this request alone.
std::optional<wire::TextDelta> DetokenizerStage::open(const wire::TokenDelta& delta) {
  wire::TextDelta refused{.id = delta.id, .usage = delta.usage};
  refused.finish = wire::Finish{.reason = wire::FinishReason::kError};
  auto stops = StopStrings::create(delta.start->stop, delta.start->include_stop_str_in_output);
  if (!stops.ok()) {
    refused.finish->code = stops.status().code();
    refused.finish->message = stops.status().message();
    return refused;
  }
  if (states_.size() >= kMaxDetokenizerStates) {
    refused.finish->code = StatusCode::kResourceExhausted;
    refused.finish->message = fmt::format("the detokenizer follows {} requests, its limit", states_.size());
    return refused;
  }
  IncrementalDetokenizer detokenizer(tokenizer_, delta.start->skip_special_tokens);
  states_.insert_or_assign(delta.id, State{std::move(detokenizer), std::move(stops).value(), delta.start->stop});
  return std::nullopt;
}

void DetokenizerStage::append(wire::TextDelta& out, State& state, const StopStrings::Output& output) {
  out.text += output.emit;
  if (!output.matched) return;
  out.finish = wire::Finish{.reason = wire::FinishReason::kStop, .matched_text = state.stop[output.matched_index]};
  out.usage.completion_tokens = state.completion_tokens;
}

std::optional<wire::TextDelta> DetokenizerStage::translate(const wire::TokenDelta& delta) {
  wire::TextDelta out{.id = delta.id, .accepted = delta.start.has_value(), .usage = delta.usage};
  if (delta.start) {
    if (auto refused = open(delta)) return refused;
  }
  auto found = states_.find(delta.id);
  if (found == states_.end()) {
    // A request refused by the scheduler has no state; one that a stop string ended has none any more, and the front
    // ignores what it hears of it. An end of a request whose state was lost must still be an end.
    if (!delta.finish || delta.finish->reason == wire::FinishReason::kAborted) return std::nullopt;
    out.finish = delta.finish;
    if (delta.finish->reason != wire::FinishReason::kError) {
      out.finish = wire::Finish{.reason = wire::FinishReason::kError,
                                .code = StatusCode::kInternal,
                                .message = "the detokenizer lost this request"};
    }
    return out;
  }
  State& state = found->second;
  for (int32_t id : delta.tokens) {
    ++state.completion_tokens;
    append(out, state, state.stops.push(state.detokenizer.push(id)));
    if (out.finish) break;
  }
  if (delta.finish && !out.finish) {
    append(out, state, state.stops.push(state.detokenizer.finish()));
    if (!out.finish) {
      out.text += state.stops.finish();
      out.finish = delta.finish;
    }
  }
  if (out.finish) states_.erase(found);
  const bool news = out.accepted || out.finish || !out.text.empty();
  return news ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace millrace
