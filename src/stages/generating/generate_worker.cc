// generate: a GeneratingEngine as the worker of a stage. Owner: its WorkerHost; all state is the loop's thread's, but
// for the two atomics of pulse(). A request passes: begin() -> preparing_ (grammar, media) -> pages_ (cached KV of
// others) -> give_to_scheduler() -> states_ (the scheduler has it; beside it in held_ while its receiver is behind) ->
// finish() or drop().
#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/clock.h"
#include "stages/generating/delta_list.h"
#include "stages/generating/embedding.h"
#include "stages/generating/generate_state.h"
#include "stages/generating/lengths.h"
#include "stages/generating/preparing_requests.h"
#include "stages/generating/prompt_pages.h"
#include "stages/generating/range_spans.h"
#include "stages/generating/speech_inputs.h"
#include "stages/generating/token_values.h"
#include "stages/generating/weight_commands.h"
#include "stages/generating/workers.h"
#include "stages/stage.h"

namespace millrace {
namespace {

constexpr int kMaxEventsPerStep = 1024;  // of the loop; then a step, however many wait

class GenerateWorker : public Worker {
 public:
  explicit GenerateWorker(GenerateParts parts)
      : options_(std::move(parts.options)),
        load_(std::move(parts.load)),
        tokenizer_(std::move(parts.tokenizer)),
        read_request_(std::move(parts.read_request)),
        make_kv_events_(std::move(parts.make_kv_events)),
        make_media_(std::move(parts.make_media)),
        make_weights_(std::move(parts.make_weights)),
        make_transfers_(std::move(parts.make_transfers)),
        make_saved_(std::move(parts.make_saved)),
        live_(std::move(parts.live)),
        speech_(std::move(parts.speech)),
        range_spans_(std::move(parts.spans)),
        write_snapshot_(std::move(parts.write_snapshot)),
        text_checksum_(parts.text_checksum),
        streams_(parts.streams),
        to_client_(parts.to_client) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Runner> runner, load_(progress));
    // First the runner, as everything below takes its facts: vocabulary, page size, weights.
    engine_.emplace(options_, std::move(runner));
    weights_.emplace(make_weights_, live_, write_snapshot_, *engine_);
    model_ = engine_->model();
    std::unique_ptr<MediaModel> media;
    if (make_media_) {
      ASSIGN_OR_RETURN(media, make_media_(progress));
      towers_checksum_ = media->weights_checksum();
    }
    preparing_.emplace(tokenizer_, model_.vocab_size, options_.eos_token_ids, std::move(media));
    if (make_kv_events_) {
      ASSIGN_OR_RETURN(kv_events_, make_kv_events_());
    }
    std::unique_ptr<transfer::TransferService> transfers;
    if (make_transfers_) {
      ASSIGN_OR_RETURN(transfers, make_transfers_(*engine_, std::nullopt));
    }
    std::unique_ptr<kv_disk::SavedPrefixes> saved;
    if (make_saved_) {
      ASSIGN_OR_RETURN(saved, make_saved_(*engine_));
    }
    pages_.emplace(engine_->scheduler(), model_.page_size, std::move(transfers), std::move(saved));
    return ok_status();
  }

  void trace(std::string traceparent) override { traceparent_ = std::move(traceparent); }

  void start(ReqId id, Value payload, Emit& emit) override {
    fresh_ = true;
    if (Status status = begin_payload(id, payload, emit); !status.ok()) refuse(id, status, emit);
  }

  void generate(ReqId id, wire::TokenizedRequest request, Emit& emit) override {
    fresh_ = true;
    request.id = id;
    request.traceparent = std::exchange(traceparent_, {});
    // Its receivers get deltas alone; only a result or a client needs the ids again.
    GenerateState state{.typed = streams_ && !to_client_};
    if (Status status = begin(std::move(request), std::move(state), emit); !status.ok()) refuse(id, status, emit);
  }

  void drop(ReqId id) override {
    fresh_ = true;
    held_.erase(id);
    preparing_->drop(id);
    pages_->drop(id, monotonic_ms());
    speech_.drop(id);
    range_spans_.end(id, engine_->runner());
    // A request is in preparing_, in pages_ or in states_; which one is not recorded, and each lookup is cheap.
    if (states_.erase(id) == 0) return;
    Deltas ignored;
    engine_->scheduler().abort(id, ignored);
  }

  void on_lease_lost() override { engine_->scheduler().resume(); }

  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    if (WeightCommands::takes(command.action)) return begin_weights(command, emit);
    if (command.action == wire::AdminAction::kShowState) {
      return emit.reply(command.id, state_json(engine_->scheduler().snapshot(), preparing()));
    }
    if (command.action != wire::AdminAction::kFlushCache) return Worker::admin(command, now_ms, emit);
    // At once; pages are flushed when no request uses them, so the reply comes by settle_flushes().
    preparing_->flush();
    speech_.flush();
    const Status status = engine_->flush_when_idle(command.id, now_ms + std::max<int64_t>(command.timeout_ms, 0));
    if (!status.ok()) emit.reply(command.id, status);
  }

  bool describe(wire::StageStatus& status) const override {
    engine_->describe(status);
    status.text_checksum = text_checksum_;
    status.frozen_checksum = towers_checksum_;
    weights_->describe(status.metrics);
    preparing_->describe(status.metrics);
    speech_.describe(status.metrics);
    pages_->describe(status.metrics);
    if (kv_events_) kv_events_->describe(status.metrics);
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
    // Before the step, so that what became ready is planned in it.
    for (PreparingRequests::Prepared& prepared : preparing_->take_prepared()) go_on(std::move(prepared), emit);
    // Messages before the step too: pages that they bring are written by the batch that it submits.
    pages_->receive(now_ms);
    Deltas out;
    // A shorter wait while others take pages: their layers are sent as the batch stores them.
    const bool busy = engine_->step(out, pages_->exports() ? transfer::kTransferRestMs : kStepPollMs);
    emit_deltas(out, emit);
    const SchedulerFacts facts = engine_->scheduler().facts();
    speech_.on_weights(facts.weight_version);
    // After the step has settled: the pages of these requests are in the cache now, and the next plan finds them.
    bool received = false;
    for (PromptPages::Begun& begun : pages_->step(now_ms)) {
      give_to_scheduler(std::move(begun), emit);
      received = true;
    }
    emit_held(emit);
    engine_->settle_flushes(now_ms, reply_to(emit));
    weights_->settle(weights_reply_to(emit));
    if (kv_events_) kv_events_->publish(engine_->scheduler().take_events());
    // For pulse(), which any thread may call. Relaxed: each is a number of its own, and a late one delays a stall's
    // report.
    busy_.store(busy, std::memory_order_relaxed);
    steps_.store(facts.steps, std::memory_order_relaxed);
    if (busy) return 0;
    if (const std::optional<int> due_ms = pages_->due()) return *due_ms;
    // Not Scheduler::busy(), which is true during a whole pause: there is no work until it ends.
    if (received) return 0;
    // These wait for other threads or receivers, which do not wake this worker.
    if (!held_.empty() || !preparing_->empty() || weights_->waits()) return kRestMs;
    // Requests without work: the scheduler is paused, and their deadlines still have to end them.
    return states_.empty() ? kNever : kPausedTickMs;
  }

 private:
  using Deltas = GeneratingEngine::Deltas;

  static GeneratingEngine::Reply reply_to(Emit& emit) {
    // By reference: called inside the same call of the worker only.
    return [&emit](uint64_t command, const Result<std::string>& reply) { emit.reply(command, reply); };
  }

  static WeightCommands::Reply weights_reply_to(Emit& emit) {
    return [&emit](uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights) {
      emit.reply(command, reply, weights);
    };
  }

  void begin_weights(const wire::AdminRequest& command, Emit& emit) {
    Deltas out;
    const Scheduler& scheduler = engine_->scheduler();
    const bool pending = scheduler.switch_pending();
    // A command about weights may pause the engine or end requests, whose deltas leave now.
    weights_->begin(command, out, weights_reply_to(emit));
    // A switch that was refused, or was done before, ends none.
    const bool switches = command.action == wire::AdminAction::kSwitchWeights && !pending && scheduler.switch_pending();
    if (command.policy == InFlightPolicy::kAbort && (switches || command.action == wire::AdminAction::kPause)) {
      abort_preparing(out);
    }
    emit_deltas(out, emit);
  }

  // Those that the scheduler does not know yet, and so cannot end.
  void abort_preparing(Deltas& out) {
    std::vector<PreparingState> all = preparing_->take_all();
    std::ranges::move(pages_->take_all(monotonic_ms()), std::back_inserter(all));
    for (PreparingState& next : all) {
      append_end(next.request, wire::FinishReason::kAborted, out);
      // Before the deltas, which are emitted by this record.
      states_.insert_or_assign(next.request.id, std::move(next.state));
    }
  }

  void refuse(ReqId id, const Status& status, Emit& emit) {
    range_spans_.end(id, engine_->runner());
    states_.erase(id);
    held_.erase(id);
    speech_.drop(id);
    // A server that was promised this request's pages is not to wait for them.
    pages_->on_end(id, status, monotonic_ms());
    emit.fail(id, status);
  }

  Status begin_payload(ReqId id, const Value& payload, Emit& emit) {
    wire::TokenizedRequest request{.id = id};
    request.traceparent = std::exchange(traceparent_, {});
    ASSIGN_OR_RETURN(request.prompt, ids_of(payload));
    ASSIGN_OR_RETURN(GenerateRequest wanted, read_request_(payload));
    request.sampling = std::move(wanted.sampling);
    ASSIGN_OR_RETURN(request.sampling.max_tokens, resolve_max_tokens(static_cast<int64_t>(request.prompt.size()),
                                                                     wanted.max_tokens, model_.context_length));
    request.extra_key = std::move(wanted.extra_key);
    request.priority = wanted.priority;
    request.timeout_ms = wanted.timeout_ms;
    request.queue_timeout_ms = wanted.queue_timeout_ms;
    return begin(std::move(request), {.rest = without(payload, {kIdsKey, "sampling"})}, emit);
  }

  Status begin(wire::TokenizedRequest request, GenerateState state, Emit& emit) {
    const wire::SamplingParams& sampling = request.sampling;
    const wire::DetokenizeStart text =
        wire::detokenize_start(sampling, has_text(request.prompt, sampling.skip_special_tokens));
    state.continues_text = text.continues_text;
    // Typed requests have these in their first delta.
    if (!state.typed) state.options = detokenize_options(text);
    if (!text.stop.empty() || !text.stop_regex.empty()) {
      if (!tokenizer_) {
        return error(StatusCode::kUnsupported, "stop strings need a tokenizer, and the model has none");
      }
      // Text is followed here, beside the detokenizer, so that no step is computed behind a stop string.
      ASSIGN_OR_RETURN(state.stops, TokenText::create(tokenizer_, text));
    }
    if (request.embed) RETURN_IF_ERROR(check_embed_use(request, model_));
    if (request.speech) {
      RETURN_IF_ERROR(speech_.begin(request));
      if (request.speech->verbatim) {  // the answer is there
        // Before the deltas, which are emitted by this record.
        states_.insert_or_assign(request.id, std::move(state));
        Deltas out;
        append_end(request, wire::FinishReason::kStop, out);
        return emit_deltas(out, emit), ok_status();
      }
    }
    // A grammar and media are prepared at the same time. Pages come last: only a request that could begin at once is
    // worth fetching some for.
    ASSIGN_OR_RETURN(std::optional<PreparingState> next,
                     preparing_->begin({std::move(request), std::move(state), {}, monotonic_ms()}));
    if (next) fetch_pages(std::move(*next), emit);
    return ok_status();
  }

  std::vector<PreparingRequest> preparing() const {
    std::vector<PreparingRequest> out;
    const int64_t now_ms = monotonic_ms();
    preparing_->describe(out, now_ms);
    pages_->describe(out, now_ms);
    return out;
  }

  void go_on(PreparingRequests::Prepared prepared, Emit& emit) {
    if (!prepared.status.ok()) return refuse(prepared.request.request.id, prepared.status, emit);
    fetch_pages(std::move(prepared.request), emit);
  }

  // The last thing that a request may wait for.
  void fetch_pages(PreparingState next, Emit& emit) {
    const ReqId id = next.request.id;
    auto begun = pages_->begin(std::move(next), monotonic_ms());
    if (!begun.ok()) return refuse(id, begun.status(), emit);
    if (*begun) give_to_scheduler(std::move(**begun), emit);
  }

  void give_to_scheduler(PromptPages::Begun begun, Emit& emit) {
    PreparingState& next = begun.request;
    if (!begun.status.ok()) return refuse(next.request.id, begun.status, emit);
    // The wait before the scheduler knew it counts for the request's deadline and its metrics.
    BeforeAcceptance before{.waited_us = (monotonic_ms() - next.since_ms) * 1000,
                            .transferred_tokens = begun.transferred_tokens,
                            .transfer = std::move(begun.transfer)};
    // As late as possible: the kept rows that it may use are of these weights, which may have switched during the wait.
    next.parts.capture = speech_.capture(next.request, next.parts.input.get(), engine_->model().weight_version);
    if (next.request.embed) next.state.embedding = next.parts.capture = capture_embedding(next.request, model_);
    // Before receive(), whose deltas may end the request at once.
    states_.insert_or_assign(next.request.id, std::move(next.state));
    range_spans_.begin(next.request.id, next.request.traceparent, engine_->runner());
    Deltas out;
    engine_->scheduler().receive(std::move(next.request), out, std::move(next.parts), std::move(before));
    emit_deltas(out, emit);
  }

  bool has_text(const std::vector<int32_t>& prompt, bool skip_special_tokens) const {
    return tokenizer_ && std::any_of(prompt.begin(), prompt.end(), [&](int32_t id) {
             return tokenizer_->has_token(id) && !(skip_special_tokens && tokenizer_->is_special(id));
           });
  }

  void emit_deltas(Deltas& deltas, Emit& emit) {
    for (wire::TokenDelta& delta : deltas) {
      const auto found = states_.find(delta.id);
      // Dropped or refused earlier in this very list.
      if (found == states_.end()) continue;
      if (delta.start) {
        delta.start->continues_text = found->second.continues_text;
        delta.speech = speech_.take_start(delta.id);
      }
      emit_delta(found->second, delta, emit);
    }
  }

  void emit_delta(GenerateState& state, wire::TokenDelta& delta, Emit& emit) {
    // The delta has its finish by now; the scheduler's own end of the request is not reported any more.
    if (state.stops && end_by_text(*state.stops, delta)) stop_in_scheduler(delta.id);
    if (!state.typed) state.ids.insert(state.ids.end(), delta.tokens.begin(), delta.tokens.end());
    // Also of a request that is held: finish() sends what waits with it.
    if (delta.finish) return finish(state, delta, emit);
    if (!streams_) return;
    // A receiver that is behind gets more at once, later.
    const ReqId id = delta.id;
    // Once held, a request stays so until emit_held() has sent what waits, also where its receiver has caught up
    // meanwhile: later ids must not overtake earlier ones.
    if (held_.contains(id) || emit.congested(id)) {
      held_.insert(id);
      join_delta(state.unsent, std::move(delta));
    } else {
      emit_tokens(id, std::move(delta), emit);
    }
  }

  void stop_in_scheduler(ReqId id) {
    Deltas ignored;
    engine_->scheduler().stop(id, ignored);
  }

  void emit_tokens(ReqId id, wire::TokenDelta delta, Emit& emit) {
    speech_.on_delta(delta, emit);
    if (!to_client_) return emit.tokens(id, std::move(delta));
    if (delta.tokens.empty()) return;
    Value ids;
    ids.set(std::string(kIdsKey), ids_tensor(delta.tokens));
    emit.chunk_to(id, "", std::move(ids), "ids");
  }

  void emit_unsent(ReqId id, GenerateState& state, Emit& emit) {
    // Usually one: deltas are joined where their weights are the same.
    for (wire::TokenDelta& delta : std::exchange(state.unsent, {})) emit_tokens(id, std::move(delta), emit);
  }

  void emit_held(Emit& emit) {
    for (auto it = held_.begin(); it != held_.end();) {
      if (emit.congested(*it)) {
        ++it;
        continue;
      }
      if (const auto state = states_.find(*it); state != states_.end()) emit_unsent(*it, state->second, emit);
      it = held_.erase(it);
    }
  }

  void finish(GenerateState& state, wire::TokenDelta& delta, Emit& emit) {
    const ReqId id = delta.id;
    const wire::Finish end = *delta.finish;
    if (end.reason == wire::FinishReason::kError) return refuse(id, Status(end.code, end.message), emit);
    held_.erase(id);
    range_spans_.end(id, engine_->runner());
    if (state.embedding && end.reason == wire::FinishReason::kLength) delta.embedding = embedding_of(*state.embedding);
    // Before the delta moves away: the result has its finish and usage.
    Value answer = state.typed ? Value() : result(state, delta);
    if (streams_) {
      join_delta(state.unsent, std::move(delta));
      emit_unsent(id, state, emit);
    }
    // Behind the last delta, which receivers must have before the end of the stream.
    emit.result(id, std::move(answer));
    pages_->on_end(id, ok_status(), monotonic_ms());
    speech_.drop(id);
    states_.erase(id);
  }

  static Value result(GenerateState& state, const wire::TokenDelta& delta) {
    Value out = state.rest.is<ValueMap>() ? std::move(state.rest) : Value(ValueMap{});
    set_result(out, state.ids, *delta.finish, delta.usage);
    if (state.options.is<ValueMap>()) out.set(std::string(kDetokenizeKey), state.options);
    return out;
  }

  const SchedulerOptions options_;
  const LoadRunner load_;
  std::optional<GeneratingEngine> engine_;  // from load() on, as the next two
  std::optional<WeightCommands> weights_;
  std::optional<PreparingRequests> preparing_;
  RunnerFacts model_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const ReadRequest read_request_;
  const MakeKvEvents make_kv_events_;
  const MakeMedia make_media_;
  const MakeWeights make_weights_;
  const MakeTransfers make_transfers_;
  const MakeSavedPrefixes make_saved_;
  const LiveOptions live_;
  SpeechInputs speech_;
  RangeSpans range_spans_;
  std::string traceparent_;  // of the request that comes next
  const WriteSnapshot write_snapshot_;
  const uint64_t text_checksum_;
  uint64_t towers_checksum_ = 0;
  std::unique_ptr<KvEventStream> kv_events_;
  std::optional<PromptPages> pages_;  // from load() on
  const bool streams_;
  const bool to_client_;
  std::unordered_map<ReqId, GenerateState> states_;
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
