#include "stages/detokenizer_stage.h"

#include <iterator>
#include <thread>

#include "base/log.h"
#include "wire/limits.h"

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
      send_text(translate(std::move(*batch)));
    } else if (auto* status = std::get_if<wire::StageStatus>(&*message)) {
      hear_scheduler(*status);
      front_.send(std::move(*message));
    } else if (std::holds_alternative<wire::AdminReply>(*message)) {
      front_.send(std::move(*message));
    } else {
      LOG_WARNING("ignored a message of type {}: it is not for the detokenizer", message->index());
    }
  }
  front_.flush();
}

// Two deltas for one happen where the weights change; a full batch may then be too long for the wire.
void DetokenizerStage::send_text(wire::TextBatch text) {
  for (std::size_t at = 0; at < text.deltas.size(); at += wire::kMaxBatchEntries) {
    const std::size_t count = std::min(wire::kMaxBatchEntries, text.deltas.size() - at);
    const auto begin = std::make_move_iterator(text.deltas.begin() + static_cast<std::ptrdiff_t>(at));
    wire::TextBatch part;
    part.deltas.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    front_.send(std::move(part));
  }
}

// A new scheduler knows nothing of the requests that the dead one left behind. The first one heard takes nothing away,
// and neither does late news of an old one.
void DetokenizerStage::hear_scheduler(const wire::StageStatus& status) {
  if (status.stage != "scheduler" && !status.stage.starts_with("scheduler-")) return;
  const auto known = schedulers_.find(status.replica);
  if (known == schedulers_.end()) {
    if (schedulers_.size() < kMaxSchedulers) {
      schedulers_.emplace(status.replica, status.incarnation);
    } else {
      LOG_WARNING("{} is one scheduler too many: its restarts are not followed; wanted at most {}", status.stage,
                  kMaxSchedulers);
    }
    return;
  }
  if (status.incarnation <= known->second) return;
  known->second = status.incarnation;
  std::erase_if(states_, [&](const auto& entry) { return entry.second.source == status.replica; });
}

void DetokenizerStage::heartbeat() {
  wire::StageStatus status;
  status.stage = "detokenizer";
  status.incarnation = incarnation_;
  status.state = wire::StageState::kReady;
  status.steps = batches_;
  status.running = static_cast<int32_t>(states_.size());
  status.metrics = {{"detokenizer_states", static_cast<double>(states_.size())},
                    {"detokenizer_tokens_total", static_cast<double>(tokens_)},
                    {"detokenizer_text_stops_total", static_cast<double>(text_stops_)}};
  front_.send_unless_full(std::move(status));
}

wire::TextBatch DetokenizerStage::translate(wire::TokenBatch batch) {
  ++batches_;
  wire::TextBatch text;
  for (wire::TokenDelta& delta : batch.deltas) translate(delta, batch.source, text);
  return text;
}

// Makes the state that `delta.start` asks for. A failure ends this request alone.
std::optional<wire::TextDelta> DetokenizerStage::open(const wire::TokenDelta& delta, uint32_t source) {
  wire::TextDelta refused{.id = delta.id, .usage = delta.usage};
  refused.finish = wire::Finish{.reason = wire::FinishReason::kError};
  auto made = TokenText::create(tokenizer_, *delta.start);
  if (!made.ok()) {
    refused.finish->code = made.status().code();
    refused.finish->message = made.status().message();
    return refused;
  }
  if (states_.size() >= kMaxDetokenizerStates) {
    refused.finish->code = StatusCode::kResourceExhausted;
    refused.finish->message = fmt::format("the detokenizer follows {} requests, its limit", states_.size());
    return refused;
  }
  states_.insert_or_assign(delta.id, State{.text = std::move(made).value(), .source = source});
  return std::nullopt;
}

// A request refused by the scheduler has no state; one that a stop ended has none any more, and the front ignores what
// it hears of it. An end of a request whose state was lost must still be an end.
void DetokenizerStage::without_state(wire::TokenDelta& delta, wire::TextBatch& text) {
  if (!delta.finish || delta.finish->reason == wire::FinishReason::kAborted) return;
  if (delta.finish->reason != wire::FinishReason::kError) {
    delta.finish = wire::Finish{.reason = wire::FinishReason::kError,
                                .code = StatusCode::kInternal,
                                .message = "the detokenizer lost this request"};
  }
  text.deltas.push_back({.id = delta.id,
                         .accepted = delta.start.has_value(),
                         .finish = std::move(delta.finish),
                         .usage = delta.usage,
                         .weight_version = delta.weight_version});
}

// Adds the text of the delta's tokens, and the end where there is one. Returns how many of the tokens count.
std::size_t DetokenizerStage::feed(wire::TextDelta& out, State& state, const wire::TokenDelta& delta) {
  TokenText::Piece piece = state.text.feed(delta.tokens, delta.finish.has_value());
  out.text += piece.text;
  tokens_ += piece.fed;
  if (!piece.finish) return piece.fed;
  if (piece.finish->matched_text) ++text_stops_;
  out.finish = std::move(piece.finish);
  out.usage.completion_tokens = state.text.ids_fed();
  return piece.fed;
}

void DetokenizerStage::translate(wire::TokenDelta& delta, uint32_t source, wire::TextBatch& text) {
  if (delta.start) {
    if (auto refused = open(delta, source)) {
      text.deltas.push_back(std::move(*refused));
      return;
    }
  }
  auto found = states_.find(delta.id);
  if (found == states_.end()) return without_state(delta, text);
  State& state = found->second;
  wire::TextDelta out{.id = delta.id,
                      .accepted = delta.start.has_value(),
                      .usage = delta.usage,
                      .weight_version = delta.weight_version};
  const std::size_t fed = feed(out, state, delta);
  out.tokens = std::move(delta.tokens);
  out.tokens.resize(fed);
  out.logprobs = std::move(delta.logprobs);
  out.prompt_logprobs = std::move(delta.prompt_logprobs);
  if (out.finish) {
    out.logprobs.resize(std::min(out.logprobs.size(), fed));  // an end or stop token behind the match is not reached
  } else {
    out.finish = std::move(delta.finish);
  }

  wire::TextDelta held = std::exchange(state.held, {});
  if (!held.tokens.empty()) {
    if (out.weight_version != held.weight_version && out.weight_version != 0) {
      text.deltas.push_back(std::move(held));
    } else {
      out.weight_version = held.weight_version;
      held.tokens.insert(held.tokens.end(), out.tokens.begin(), out.tokens.end());
      out.tokens = std::move(held.tokens);
    }
  }
  const bool news = out.accepted || out.finish || !out.text.empty() || !out.logprobs.empty() ||
                    !out.prompt_logprobs.empty() || out.tokens.size() >= kMaxHeldTokens;
  if (out.finish) states_.erase(found);
  if (news) {
    text.deltas.push_back(std::move(out));
  } else {
    state.held = std::move(out);
  }
}

}  // namespace millrace
