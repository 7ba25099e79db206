// talk: text deltas to frames of codes, with a talker of its own.
#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "stages/generating/state_json.h"
#include "stages/generating/token_values.h"
#include "stages/speech/speech_workers.h"
#include "stages/speech/talker_sequence.h"

namespace millrace {
namespace {

constexpr int kMaxEventsPerStep = 1024;   // of the loop; then a step, however many wait
constexpr int32_t kMaxFramesAhead = 250;  // that the next stage has not taken: 20 s of sound

class TalkWorker : public Worker {
 public:
  explicit TalkWorker(TalkParts parts) : parts_(std::move(parts)) {}

  Status load(const LoadProgress& progress) override {
    ASSIGN_OR_RETURN(LoadedTalker loaded, parts_.load(progress));
    weights_checksum_ = loaded.weights_checksum;
    engine_.emplace(parts_.options, std::move(loaded.runner));
    context_length_ = engine_->model().context_length;
    return ok_status();
  }

  void tokens(ReqId id, const std::string&, wire::TokenDelta delta, Emit& emit) override {
    fresh_ = true;
    if (Status status = take(id, delta, emit); !status.ok()) refuse(id, status, emit);
  }

  // The hidden rows of media: before the first text, and behind the beginning or before it.
  void chunk(ReqId id, const std::string&, Value chunk, Emit& emit) override {
    fresh_ = true;
    if (Status status = take_media(id, chunk); !status.ok()) refuse(id, status, emit);
  }

  void start(ReqId id, Value, Emit& emit) override {
    fresh_ = true;
    const auto found = spoken_.find(id);
    // The beginning comes with the first delta, which may still wait behind rows of media that a relay brings.
    if (found == spoken_.end()) {
      early_results_.insert(id);
      return;
    }
    // The result waits for both ends: the thinker may end while seconds of sound are still to come, or after them.
    found->second.thinker_ended = true;
    conclude(id, emit);
  }

  // A stream without a beginning is of a request that is not spoken.
  void chunks_done(ReqId id, const std::string&, Emit& emit) override {
    fresh_ = true;
    if (!spoken_.contains(id)) emit.fail(id, nothing_to_speak());
  }

  void drop(ReqId id) override {
    fresh_ = true;
    held_.erase(id);
    early_results_.erase(id);
    early_media_.erase(id);
    if (spoken_.erase(id) != 0) abort(id);
  }

  void admin(const wire::AdminRequest& command, int64_t now_ms, Emit& emit) override {
    if (command.action != wire::AdminAction::kShowState) return Worker::admin(command, now_ms, emit);
    emit.reply(command.id, state_json(engine_->scheduler().snapshot(), {}));
  }

  int tick(int64_t, Emit& emit) override {
    // All waiting events before the next step, so that requests that come together are planned together.
    if (std::exchange(fresh_, false) && ++events_ < kMaxEventsPerStep) return 0;
    events_ = 0;
    Deltas out;
    const bool busy = engine_->step(out);
    for (const wire::TokenDelta& delta : out) report(delta, emit);
    // A copy: send() takes ids out of held_, and an end erases the request.
    const std::vector<ReqId> held(held_.begin(), held_.end());
    for (const ReqId id : held) send(id, emit);
    busy_.store(busy, std::memory_order_relaxed);
    steps_.store(engine_->scheduler().facts().steps, std::memory_order_relaxed);
    // What was sent now may have released rows of a request that rested: there is a step to plan, and no event follows.
    if (busy || held_.size() < held.size()) return 0;
    // Nothing reports that a receiver has caught up, so what is held is tried again.
    return held_.empty() ? kNever : kRestMs;
  }

  bool describe(wire::StageStatus& status) const override {
    const SchedulerFacts facts = engine_->scheduler().facts();
    status.steps = facts.steps;
    status.running = facts.running;
    status.waiting = facts.waiting;
    status.pages_total = facts.pages_total;
    status.pages_free = facts.pages_free;
    status.pages_cached = facts.pages_cached;
    status.page_size = facts.page_size;
    status.frozen_checksum = weights_checksum_;
    status.metrics = {{"speech_frames_total", static_cast<double>(frames_)},
                      {"speech_held_requests", static_cast<double>(held_.size())},
                      {"talker_rows_total", static_cast<double>(facts.computed_tokens)},
                      {"talker_retractions_total", static_cast<double>(facts.retractions)},
                      {"talker_compute_seconds_total", static_cast<double>(facts.compute_us) * 1e-6},
                      {"talker_idle_seconds_total", static_cast<double>(facts.idle_us) * 1e-6}};
    return true;
  }

  std::optional<Pulse> pulse() const override {
    return Pulse{.busy = busy_.load(std::memory_order_relaxed),
                 .progress = steps_.load(std::memory_order_relaxed) + engine_->runner_progress()};
  }

 private:
  using Deltas = GeneratingEngine::Deltas;

  struct Spoken {
    std::shared_ptr<TalkerSequence> sequence;
    int32_t drawn = 0;  // frames
    int32_t sent = 0;   // of these
    bool thinker_ended = false;
    bool ended = false;  // no frame comes any more
  };

  static Status nothing_to_speak() {
    return invalid_argument("the request reaches the talker and is not to be spoken; wanted the text's terminal alone");
  }

  Status take(ReqId id, const wire::TokenDelta& delta, Emit& emit) {
    // With the first delta alone.
    if (delta.speech) RETURN_IF_ERROR(begin(id, *delta.speech, emit));
    const auto found = spoken_.find(id);
    if (found == spoken_.end()) return nothing_to_speak();
    TalkerSequence& sequence = *found->second.sequence;
    // Before the rows are released below: the compute thread may read a row as soon as it is.
    sequence.add_text(delta.tokens);
    if (delta.finish) {
      sequence.end_text();
      // An empty answer is no sound, nor one that was aborted before its prompt was computed.
      if (!sequence.any_text() || sequence.waits_for_media()) {
        abort(id);
        found->second.ended = true;
      }
    }
    release_rows(id, found->second);
    return ok_status();
  }

  Status begin(ReqId id, const wire::SpeechStart& start, Emit& emit) {
    const TalkerConfig& config = parts_.config.talker;
    const auto speaker = config.speakers.find(start.request.voice);
    if (speaker == config.speakers.end()) {
      return invalid_argument("the voice is '{}'; wanted one of the model's", start.request.voice);
    }
    ASSIGN_OR_RETURN(SpokenTurn turn, read_spoken_turn(start.prompt, start.media, config, speaker->second));
    const std::shared_ptr<const PromptInput> input = positions_of(turn);
    // Of the frame's other codes, which the code predictor draws. The first one is drawn by the scheduler, by
    // `sampling`.
    const CodeDraws draws{.seed = start.request.seed, .greedy = start.request.temperature <= 0};
    auto sequence = std::make_shared<TalkerSequence>(std::move(turn), config.turns, config.code_groups, draws);
    wire::TokenizedRequest request{.id = id};
    // Only the number of ids counts here: the rows come from the sequence, and the row state keeps them out of the
    // cache.
    request.prompt.assign(static_cast<std::size_t>(sequence->prompt_rows()), config.codec_pad);
    if (sequence->prompt_rows() >= context_length_) {
      return error(StatusCode::kTooLarge, "the talker's prompt has {} rows; wanted at most {}", sequence->prompt_rows(),
                   context_length_ - 1);
    }
    request.sampling = sampling_of(start.request, context_length_ - sequence->prompt_rows());
    // Before receive(): its deltas, of a refusal for example, are reported by this record.
    spoken_.insert_or_assign(id, Spoken{.sequence = sequence, .thinker_ended = early_results_.erase(id) != 0});
    // The thinker sends the rows before the first delta with tokens. Where that is its first delta of all, they come
    // before the beginning.
    if (auto early = early_media_.extract(id); !early.empty()) {
      RETURN_IF_ERROR(set_media(*sequence, std::move(early.mapped())));
    }
    Deltas out;
    engine_->scheduler().receive(std::move(request), out, {.input = input, .row_state = std::move(sequence)});
    for (const wire::TokenDelta& delta : out) report(delta, emit);
    return ok_status();
  }

  // Three axes where there is a picture. Audio alone stands as text does.
  static std::shared_ptr<const PromptInput> positions_of(const SpokenTurn& turn) {
    if (turn.pictures.empty()) return nullptr;
    MropePositions positions = mrope_positions(static_cast<int32_t>(turn.rows.size()), turn.pictures);
    auto input = std::make_shared<PromptInput>();
    input->positions = std::move(positions.rows);
    input->delta = positions.delta;
    return input;
  }

  Status take_media(ReqId id, const Value& chunk) {
    const Value* rows = chunk.find(kMediaRowsKey);
    const auto* tensor = rows == nullptr ? nullptr : rows->get<SharedTensor>();
    // Checked as anything from another process: the rows are read by offset.
    const int64_t width = parts_.config.talker.thinker_hidden_size;
    if (tensor == nullptr || tensor->dtype != DType::kF32 || tensor->shape.rank() != 2 || tensor->shape[1] != width) {
      return invalid_argument("a chunk without hidden rows of media; wanted {}: F32 [rows, {}]", kMediaRowsKey, width);
    }
    const auto found = spoken_.find(id);
    if (found == spoken_.end()) {
      early_media_.insert_or_assign(id, *tensor);
      return ok_status();
    }
    RETURN_IF_ERROR(set_media(*found->second.sequence, *tensor));
    release_rows(id, found->second);
    return ok_status();
  }

  static Status set_media(TalkerSequence& sequence, SharedTensor rows) {
    if (rows.shape[0] != sequence.media_rows()) {
      return invalid_argument("{} hidden rows of media; wanted {}", rows.shape[0], sequence.media_rows());
    }
    sequence.set_media(std::move(rows));
    return ok_status();
  }

  static wire::SamplingParams sampling_of(const wire::SpeechRequest& speech, int32_t most) {
    wire::SamplingParams sampling;
    // Without a limit of the request the context is the limit; a frame is one row of it.
    sampling.max_tokens = speech.max_frames > 0 ? std::min(speech.max_frames, most) : most;
    sampling.temperature = speech.temperature;
    sampling.top_p = speech.top_p;
    sampling.top_k = speech.top_k;
    sampling.repetition_penalty = speech.repetition_penalty;
    sampling.seed = speech.seed;
    return sampling;
  }

  // As far as there is text, and as far as the next stage follows.
  void release_rows(ReqId id, const Spoken& spoken) {
    // The position that a slow listener allows. It grows with `sent`, so send() calls this again.
    const int32_t ahead = spoken.sequence->prompt_rows() + spoken.sent + kMaxFramesAhead;
    engine_->scheduler().release_rows(id, std::min(spoken.sequence->rows_ready(), ahead));
  }

  void report(const wire::TokenDelta& delta, Emit& emit) {
    const auto found = spoken_.find(delta.id);
    if (found == spoken_.end()) return;
    // The scheduler has forgotten the request already; refuse()'s abort finds nothing.
    if (delta.finish && delta.finish->reason == wire::FinishReason::kError) {
      return refuse(delta.id, Status(delta.finish->code, delta.finish->message), emit);
    }
    found->second.drawn += static_cast<int32_t>(delta.tokens.size());
    frames_ += delta.tokens.size();
    found->second.ended |= delta.finish.has_value();
    send(delta.id, emit);
  }

  void send(ReqId id, Emit& emit) {
    const auto found = spoken_.find(id);
    if (found == spoken_.end()) return;
    Spoken& spoken = found->second;
    const int32_t count = spoken.drawn - spoken.sent;
    // Frames stay in the sequence, which has them in any case: nothing is copied while they wait, and later they go as
    // one chunk.
    if (count > 0 && emit.congested(id)) {
      held_.insert(id);
      return;
    }
    held_.erase(id);
    if (count > 0) {
      SharedTensor codes = ids_tensor(spoken.sequence->codes(spoken.sent, count));
      codes.shape = {count, parts_.config.talker.code_groups};
      Value chunk;
      chunk.set(kCodesKey, std::move(codes));
      emit.chunk(id, std::move(chunk));
      spoken.sent = spoken.drawn;
      release_rows(id, spoken);
    }
    conclude(id, emit);
  }

  void conclude(ReqId id, Emit& emit) {
    const auto found = spoken_.find(id);
    CHECK(found != spoken_.end());
    const Spoken& spoken = found->second;
    // The result is the last output: frames that are held come before it.
    if (!spoken.ended || !spoken.thinker_ended || spoken.sent < spoken.drawn) return;
    spoken_.erase(found);
    emit.result(id, Value());
  }

  void refuse(ReqId id, const Status& status, Emit& emit) {
    held_.erase(id);
    early_media_.erase(id);
    if (spoken_.erase(id) != 0) abort(id);
    emit.fail(id, status);
  }

  void abort(ReqId id) {
    Deltas ignored;
    engine_->scheduler().abort(id, ignored);
  }

  const TalkParts parts_;
  std::optional<GeneratingEngine> engine_;  // from load() on
  int32_t context_length_ = 0;
  std::unordered_map<ReqId, Spoken> spoken_;
  std::unordered_map<ReqId, SharedTensor> early_media_;  // of requests whose beginning has not come
  std::set<ReqId> early_results_;                        // of the thinker, the same
  std::set<ReqId> held_;                                 // whose codes wait for a receiver that is behind
  bool fresh_ = false;                                   // an event came since the last tick
  int events_ = 0;                                       // since the last step
  uint64_t frames_ = 0;
  uint64_t weights_checksum_ = 0;
  std::atomic<bool> busy_{false};  // for pulse(), as the next one
  std::atomic<uint64_t> steps_{0};
};

}  // namespace

std::unique_ptr<Worker> make_talk_worker(TalkParts parts) { return std::make_unique<TalkWorker>(std::move(parts)); }

}  // namespace millrace
