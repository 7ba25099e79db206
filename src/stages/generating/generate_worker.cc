// generate: a GeneratingEngine as the worker of a stage.
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

constexpr int kMaxHeardPerStep = 1024;  // events of the loop; then a step, however many wait
// A batch that hangs keeps the worker in one call for so long, so that the stage is told to be stalled; then the loop's
// events are looked at again.
constexpr int64_t kMaxStandMs = 4'000;

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
      : engine_(std::move(parts.options), std::move(parts.runner)),
        model_(engine_.model()),
        tokenizer_(std::move(parts.tokenizer)),
        read_request_(std::move(parts.read_request)),
        streams_(parts.streams) {}

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
    if (lives_.erase(id) == 0) return;
    Deltas unheard;
    engine_.scheduler().abort(id, unheard);
  }

  Result<std::string> flush_cache() override {
    const int32_t cached = engine_.scheduler().facts().pages_cached;
    RETURN_IF_ERROR(engine_.scheduler().flush_cache());
    return fmt::format("{} cached pages are free", cached);
  }

  // First all that waits is heard, so that what came together is planned together; then a step.
  int tick(int64_t, Emit& emit) override {
    if (std::exchange(fresh_, false) && ++heard_ < kMaxHeardPerStep) return 0;
    heard_ = 0;
    const bool busy = step(emit);
    say_held(emit);
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
    std::size_t said = 0;            // of these, in chunks
    bool introduced = false;         // its first chunk was said
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
    engine_.scheduler().receive(std::move(request), out);
    hear(out, emit);
    return ok_status();
  }

  bool step(Emit& emit) {
    for (;;) {
      Deltas out;
      const bool busy = engine_.step(out);
      hear(out, emit);
      const int64_t stands_ms = engine_.stands_ms(monotonic_ms());
      if (!busy || stands_ms < kStepPollMs || stands_ms >= kMaxStandMs) return busy;
    }
  }

  void hear(Deltas& deltas, Emit& emit) {
    for (wire::TokenDelta& delta : deltas) {
      const auto found = lives_.find(delta.id);
      if (found != lives_.end()) hear(found->second, delta, emit);
    }
  }

  void hear(Life& life, wire::TokenDelta& delta, Emit& emit) {
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
    if (life.said == life.ids.size()) return;
    // A receiver that is behind gets more at once, later.
    if (emit.congested(delta.id)) {
      held_.insert(delta.id);
    } else if (!held_.contains(delta.id)) {
      say_chunk(delta.id, life, emit);
    }
  }

  void abort_in_engine(ReqId id) {
    Deltas unheard;
    engine_.scheduler().abort(id, unheard);
  }

  void say_chunk(ReqId id, Life& life, Emit& emit) {
    const std::span<const int32_t> news = std::span<const int32_t>(life.ids).subspan(life.said);
    life.said = life.ids.size();
    if (!streams_) return;
    Value chunk;
    chunk.set(std::string(kIdsKey), ids_tensor(news));
    if (!std::exchange(life.introduced, true)) add_options(life, chunk);
    emit.chunk(id, std::move(chunk));
  }

  static void add_options(const Life& life, Value& value) {
    if (life.options.is<ValueMap>()) value.set(std::string(kDetokenizeKey), life.options);
  }

  void say_held(Emit& emit) {
    for (auto it = held_.begin(); it != held_.end();) {
      if (emit.congested(*it)) {
        ++it;
        continue;
      }
      if (const auto life = lives_.find(*it); life != lives_.end()) say_chunk(*it, life->second, emit);
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
      if (life.said < life.ids.size()) say_chunk(id, life, emit);
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

  GeneratingEngine engine_;
  const RunnerFacts model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ReadRequest read_request_;
  const bool streams_;
  std::map<ReqId, Life> lives_;
  std::set<ReqId> held_;  // whose ids wait for a receiver that is behind
  bool fresh_ = false;    // something was heard since the last tick
  int heard_ = 0;         // so often, without a step
};

}  // namespace

std::unique_ptr<Worker> make_generate_worker(GenerateParts parts) {
  return std::make_unique<GenerateWorker>(std::move(parts));
}

}  // namespace millrace
