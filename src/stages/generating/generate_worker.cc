// generate: a GeneratingEngine as the worker of a stage.
#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "stages/generating/lengths.h"
#include "stages/generating/token_text.h"
#include "stages/generating/token_values.h"
#include "stages/generating/workers.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int kMaxEventsPerStep = 1024;  // of the loop; then a step, however many wait

const char* reason_name(wire::FinishReason reason) { return reason == wire::FinishReason::kLength ? "length" : "stop"; }

Value usage_value(const wire::Usage& usage) {
  Value out;
  out.set("prompt_tokens", int64_t{usage.prompt_tokens});
  out.set("completion_tokens", int64_t{usage.completion_tokens});
  out.set("cached_tokens", int64_t{usage.cached_tokens});
  return out;
}

class GenerateWorker : public Worker {
 public:
  explicit GenerateWorker(GenerateParts parts)
      : options_(std::move(parts.options)),
        load_(std::move(parts.load)),
        tokenizer_(std::move(parts.tokenizer)),
        read_request_(std::move(parts.read_request)),
        streams_(parts.streams) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Runner> runner, load_(progress));
    engine_.emplace(options_, std::move(runner));
    model_ = engine_->model();
    return ok_status();
  }

  void start(ReqId id, Value payload, Emit& emit) override {
    fresh_ = true;
    if (Status status = receive(id, payload, emit); !status.ok()) {
      lives_.erase(id);
      emit.fail(id, status);
    }
  }

  void drop(ReqId id) override {
    fresh_ = true;
    held_.erase(id);
    if (lives_.erase(id) != 0) abort_in_engine(id);
  }

  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    if (command.action != wire::AdminAction::kFlushCache) return Worker::admin(command, now_ms, emit);
    const Status status = engine_->flush_when_idle(command.id, now_ms + std::max<int64_t>(command.timeout_ms, 0));
    if (!status.ok()) emit.reply(command.id, status);
  }

  bool describe(wire::StageStatus& status) const override {
    engine_->describe(status);
    return true;
  }

  std::optional<Pulse> pulse() const override {
    return Pulse{.busy = busy_.load(std::memory_order_relaxed),
                 .progress = steps_.load(std::memory_order_relaxed) + engine_->runner_progress()};
  }

  // All waiting events come before the next step, so that requests that came together are planned together.
  int tick(int64_t now_ms, Emit& emit) override {
    if (std::exchange(fresh_, false) && ++events_ < kMaxEventsPerStep) return 0;
    events_ = 0;
    Deltas out;
    const bool busy = engine_->step(out);
    emit_deltas(out, emit);
    emit_held(emit);
    engine_->settle_flushes(now_ms, [&emit](uint64_t command, const auto& done) { emit.reply(command, done); });
    busy_.store(busy, std::memory_order_relaxed);
    steps_.store(engine_->scheduler().facts().steps, std::memory_order_relaxed);
    if (busy) return 0;
    return held_.empty() ? kNever : kRestMs;
  }

 private:
  using Deltas = GeneratingEngine::Deltas;

  struct Life {
    Value rest;                      // of the payload
    Value options;                   // of its text, for who makes text of the ids; null: the defaults
    std::optional<TokenText> stops;  // where its text may end it
    std::vector<int32_t> ids;        // all so far
    std::size_t sent = 0;            // of these, in chunks
    bool introduced = false;         // its first chunk was sent
  };

  Status receive(ReqId id, const Value& payload, Emit& emit) {
    wire::TokenizedRequest request{.id = id};
    ASSIGN_OR_RETURN(request.prompt, ids_of(payload));
    ASSIGN_OR_RETURN(GenerateRequest wanted, read_request_(payload));
    request.sampling = std::move(wanted.sampling);
    ASSIGN_OR_RETURN(request.sampling.max_tokens, resolve_max_tokens(static_cast<int64_t>(request.prompt.size()),
                                                                     wanted.max_tokens, model_.context_length));
    request.extra_key = std::move(wanted.extra_key);
    request.priority = wanted.priority;
    request.timeout_ms = wanted.timeout_ms;
    request.queue_timeout_ms = wanted.queue_timeout_ms;

    const wire::SamplingParams& sampling = request.sampling;
    const wire::DetokenizeStart text{sampling.stop, sampling.skip_special_tokens, sampling.include_stop_str_in_output,
                                     sampling.stop_regex};
    Life& life = lives_[id];
    life = {.rest = without(payload, {kIdsKey, "sampling"}), .options = detokenize_options(text)};
    if (!text.stop.empty() || !text.stop_regex.empty()) {
      if (!tokenizer_) {
        return error(StatusCode::kUnsupported, "stop strings need a tokenizer, and the model has none");
      }
      ASSIGN_OR_RETURN(life.stops, TokenText::create(tokenizer_, text));
    }
    Deltas out;
    engine_->scheduler().receive(std::move(request), out);
    emit_deltas(out, emit);
    return ok_status();
  }

  void emit_deltas(Deltas& deltas, Emit& emit) {
    for (wire::TokenDelta& delta : deltas) {
      const auto found = lives_.find(delta.id);
      if (found != lives_.end()) emit_delta(found->second, delta, emit);
    }
  }

  void emit_delta(Life& life, wire::TokenDelta& delta, Emit& emit) {
    std::size_t count = delta.tokens.size();
    if (life.stops) {
      TokenText::Piece piece = life.stops->feed(delta.tokens, delta.finish.has_value());
      count = piece.fed;
      if (piece.finish) {
        if (!delta.finish) abort_in_engine(delta.id);
        delta.finish = std::move(piece.finish);
        delta.usage.completion_tokens = life.stops->ids_fed();
      }
    }
    life.ids.insert(life.ids.end(), delta.tokens.begin(), delta.tokens.begin() + static_cast<std::ptrdiff_t>(count));
    if (delta.finish) return finish(life, delta, emit);
    if (life.sent == life.ids.size()) return;
    // A receiver that is behind gets more at once, later.
    if (emit.congested(delta.id)) {
      held_.insert(delta.id);
    } else if (!held_.contains(delta.id)) {
      emit_chunk(delta.id, life, emit);
    }
  }

  void abort_in_engine(ReqId id) {
    Deltas ignored;
    engine_->scheduler().abort(id, ignored);
  }

  void emit_chunk(ReqId id, Life& life, Emit& emit) {
    const std::span<const int32_t> news = std::span<const int32_t>(life.ids).subspan(life.sent);
    life.sent = life.ids.size();
    if (!streams_) return;
    Value chunk;
    chunk.set(std::string(kIdsKey), ids_tensor(news));
    if (!std::exchange(life.introduced, true)) add_options(life, chunk);
    emit.chunk(id, std::move(chunk));
  }

  static void add_options(const Life& life, Value& value) {
    if (life.options.is<ValueMap>()) value.set(std::string(kDetokenizeKey), life.options);
  }

  void emit_held(Emit& emit) {
    for (auto it = held_.begin(); it != held_.end();) {
      if (emit.congested(*it)) {
        ++it;
        continue;
      }
      if (const auto life = lives_.find(*it); life != lives_.end()) emit_chunk(*it, life->second, emit);
      it = held_.erase(it);
    }
  }

  void finish(Life& life, wire::TokenDelta& delta, Emit& emit) {
    const wire::Finish& end = *delta.finish;
    const ReqId id = delta.id;
    held_.erase(id);
    if (end.reason >= wire::FinishReason::kAborted) {
      const StatusCode code = end.reason == wire::FinishReason::kAborted ? StatusCode::kCancelled : end.code;
      emit.fail(id, Status(code, end.message));
    } else {
      if (life.sent < life.ids.size()) emit_chunk(id, life, emit);
      emit.result(id, result(life, delta));
    }
    lives_.erase(id);
  }

  Value result(Life& life, const wire::TokenDelta& delta) const {
    Value out = std::move(life.rest);
    out.set(std::string(kIdsKey), ids_tensor(life.ids));
    out.set("finish_reason", reason_name(delta.finish->reason));
    if (delta.finish->matched_token) out.set("matched_stop", int64_t{*delta.finish->matched_token});
    if (delta.finish->matched_text) out.set("matched_stop", *delta.finish->matched_text);
    out.set("usage", usage_value(delta.usage));
    add_options(life, out);
    return out;
  }

  const SchedulerOptions options_;
  const LoadRunner load_;
  std::optional<GeneratingEngine> engine_;  // from load() on
  RunnerFacts model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ReadRequest read_request_;
  const bool streams_;
  std::map<ReqId, Life> lives_;
  std::set<ReqId> held_;           // whose ids wait for a receiver that is behind
  bool fresh_ = false;             // an event came since the last tick
  int events_ = 0;                 // since the last step
  std::atomic<bool> busy_{false};  // for pulse(), as the next one
  std::atomic<uint64_t> steps_{0};
};

}  // namespace

std::unique_ptr<Worker> make_generate_worker(GenerateParts parts) {
  return std::make_unique<GenerateWorker>(std::move(parts));
}

}  // namespace millrace
