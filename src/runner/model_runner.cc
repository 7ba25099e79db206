#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/trace.h"

namespace millrace {
namespace {

// What the pages and the workspace were made for.
bool same_shapes(const ModelConfig& a, const ModelConfig& b) {
  return a.architecture == b.architecture && a.hidden_size == b.hidden_size && a.layers == b.layers &&
         a.heads == b.heads && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim && a.vocab_size == b.vocab_size &&
         a.intermediate_size == b.intermediate_size;
}

Status owns_all_layers(const Model& model) {
  const LayerRange layers = model.layers();
  if (layers.begin == 0 && layers.end == model.config().layers) return ok_status();
  return invalid_argument("the model owns layers [{}, {}); wanted all {}", layers.begin, layers.end,
                          model.config().layers);
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::make(std::shared_ptr<const Model> model, RunnerOptions options) {
  RETURN_IF_ERROR(owns_all_layers(*model));
  ASSIGN_OR_RETURN(RunnerFacts facts, runner_facts(model->config(), options));
  facts.depth = kModelRunnerDepth;
  facts.token_in_flight = true;
  facts.kv_page_bytes = kv_page_bytes(model->config(), model->layers(), options.page_size, options.kv_dtype);
  facts.takes_media = model->config().vision.has_value();
  facts.hidden_size = model->config().hidden_size;
  if (facts.takes_media) facts.feature_sets = model->config().vision->feature_sets();
  facts.takes_sound = model->config().audio.has_value();
  facts.takes_row_states = options.row_source != nullptr;
  facts.takes_positions = true;
  facts.layers = model->config().layers;
  facts.mean_pooling = model->config().mean_pooling.value_or(false);
  ASSIGN_OR_RETURN(std::unique_ptr<LayerEngine> engine, LayerEngine::make(*model, options));
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(model), std::move(options), facts, std::move(engine)));
}

ModelRunner::ModelRunner(std::shared_ptr<const Model> model, RunnerOptions options, RunnerFacts facts,
                         std::unique_ptr<LayerEngine> engine)
    : max_rows_(options.max_rows),
      facts_(facts),
      model_(std::move(model)),
      row_source_(std::move(options.row_source)),
      engine_(std::move(engine)),
      answers_(model_->config(), engine_->pool(), engine_->ops(), std::move(options.logits_hook), row_source_.get()),
      check_(facts_) {
  thread_ = std::thread([this] { compute_main(); });
}

ModelRunner::~ModelRunner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queue_changed_.notify_one();
  thread_.join();
}

RunnerFacts ModelRunner::facts() const {
  RunnerFacts facts = facts_;
  const std::lock_guard lock(mutex_);
  facts.weight_version = model_->weight_version();
  facts.weights_checksum = model_->weights_checksum();
  return facts;
}

Status ModelRunner::submit(Batch batch) {
  {
    const std::lock_guard lock(mutex_);
    if (in_flight_ >= kModelRunnerDepth) {
      return error(StatusCode::kResourceExhausted, "{} batches are in flight; wanted fewer than {}", in_flight_,
                   kModelRunnerDepth);
    }
    ++in_flight_;
    queued_.push_back(std::move(batch));
  }
  queue_changed_.notify_one();
  return ok_status();
}

std::optional<BatchResult> ModelRunner::poll(int timeout_ms) {
  std::unique_lock lock(mutex_);
  if (in_flight_ == 0) return std::nullopt;
  const auto finished = [this] { return !finished_.empty(); };
  const auto timeout = std::chrono::milliseconds(std::max(timeout_ms, 0));
  if (!finished_changed_.wait_for(lock, timeout, finished)) return std::nullopt;
  BatchResult result = std::move(finished_.front());
  finished_.pop_front();
  --in_flight_;
  return result;
}

std::optional<StoredRows> ModelRunner::stored_rows() const {
  const std::lock_guard lock(mutex_);
  return stored_;
}

void ModelRunner::set_stored(const std::optional<StoredRows>& stored) {
  const std::lock_guard lock(mutex_);
  stored_ = stored;
}

Status ModelRunner::stage(std::shared_ptr<const Model> model) {
  RETURN_IF_ERROR(owns_all_layers(*model));
  const std::lock_guard lock(mutex_);
  if (!same_shapes(model->config(), model_->config())) {
    return invalid_argument("the new model is {} with other shapes than the one that serves; wanted the same shapes",
                            architecture_name(model->config().architecture));
  }
  if (model->weight_version() == 0 || model->weight_version() == model_->weight_version()) {
    return invalid_argument("the new model has the weight version {} and {} serves; wanted another than both it and 0",
                            model->weight_version(), model_->weight_version());
  }
  if (batch_switches()) {
    return error(StatusCode::kConflict, "a batch in flight switches to the weight version {}; try again later",
                 staged_->weight_version());
  }
  if (reaper_.full()) {
    return error(StatusCode::kResourceExhausted, "{} old models wait to be freed; try again later", kMaxRetiredModels);
  }
  reaper_.release(std::exchange(staged_, std::move(model)));
  return ok_status();
}

// A batch in flight names the staged weights, and fails without them. Under the lock.
bool ModelRunner::batch_switches() const {
  return staged_ && std::ranges::any_of(queued_, [version = staged_->weight_version()](const Batch& batch) {
           return batch.weight_version == version;
         });
}

void ModelRunner::drop_staged() {
  const std::lock_guard lock(mutex_);
  if (batch_switches()) return;
  reaper_.release(std::exchange(staged_, nullptr));
}

uint64_t ModelRunner::staged_version() const {
  const std::lock_guard lock(mutex_);
  return staged_ ? staged_->weight_version() : 0;
}

std::shared_ptr<const Model> ModelRunner::serving() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

Status ModelRunner::serve_staged() {
  const std::lock_guard lock(mutex_);
  if (in_flight_ > 0) return error(StatusCode::kConflict, "{} batches are in flight; wanted none", in_flight_);
  if (!staged_) return Runner::serve_staged();
  switch_model();
  return ok_status();
}

// Under the lock.
void ModelRunner::switch_model() {
  reaper_.release(std::exchange(model_, std::move(staged_)));
  staged_.reset();
}

void ModelRunner::compute_main() {
  trace::name_thread("compute");
  Job job;
  BatchResult result;
  for (bool any = false; next_job(any ? &result : nullptr, job); any = true) {
    result = run(std::move(job.batch), *job.model);
  }
}

// Hands over the result of the job before, if there was one, and takes the oldest batch under the same lock: a batch
// that is queued already is on its way before a thread is woken. False when the runner ends.
//
// The job's reference to its weights must never be the last one: freeing gigabytes would delay the next step. It is
// dropped under the lock while model_ is another, before a switch gives that one to the reaper.
bool ModelRunner::next_job(BatchResult* result, Job& job) {
  std::unique_lock lock(mutex_);
  CHECK(job.model == nullptr || job.model == model_);
  job.model.reset();
  if (result != nullptr) finished_.push_back(std::move(*result));
  const bool at_once = !queued_.empty();
  if (result != nullptr && !at_once) {
    lock.unlock();
    finished_changed_.notify_one();
    lock.lock();
  }
  wait_for_job(lock);
  if (stopping_) return false;
  if (staged_ && queued_.front().weight_version == staged_->weight_version()) switch_model();
  job = {std::move(queued_.front()), model_};
  queued_.pop_front();
  lock.unlock();
  if (result != nullptr && at_once) finished_changed_.notify_one();
  return true;
}

// Until there is a batch, or the end. An idle compute thread prefaults KV pages, a few at a time, without the lock.
void ModelRunner::wait_for_job(std::unique_lock<std::mutex>& lock) {
  const auto any = [this] { return stopping_ || !queued_.empty(); };
  if (queue_changed_.wait_for(lock, std::chrono::milliseconds(kKvIdleMs), any)) return;
  for (bool more = true; more && !any();) {
    lock.unlock();
    more = engine_->prefault_idle();
    lock.lock();
  }
  queue_changed_.wait(lock, any);
}

// One batch with its clock around it.
BatchResult ModelRunner::run(Batch batch, const Model& model) {
  using std::chrono::duration_cast, std::chrono::microseconds;
  const auto begin = std::chrono::steady_clock::now();
  BatchResult result;
  result.step = batch.step;
  result.weight_version = model.weight_version();
  if (last_end_) result.idle_us = duration_cast<microseconds>(begin - *last_end_).count();
  // Before the checks: a batch that was accepted and fails counts as copied (scheduler/memory.h).
  result.status = move_pages(batch);
  if (result.status.ok()) result.status = check_.check(batch);
  if (result.status.ok() && batch.weight_version != 0 && batch.weight_version != model.weight_version()) {
    result.status = internal_error("the batch names the weight version {}, which is not staged; {} serves",
                                   batch.weight_version, model.weight_version());
  }
  if (result.status.ok()) {
    for (const SequenceStep& sequence : batch.sequences) engine_->use_pages(sequence.pages);
    engine_->prefault_in_step();
    compute(batch, model, result);
  }
  set_stored(std::nullopt);
  answers_.end_batch();
  answers_.remember(batch, result);
  last_end_ = std::chrono::steady_clock::now();
  result.compute_us = duration_cast<microseconds>(*last_end_ - begin).count();
  return result;
}

Status ModelRunner::move_pages(const Batch& batch) {
  if (const Status status = engine_->copy(batch.copies); !status.ok()) {
    return status.with_prefix(fmt::format("step {}", batch.step));
  }
  for (const PageWrite& write : batch.writes) RETURN_IF_ERROR(engine_->write(write));
  return ok_status();
}

void ModelRunner::compute(Batch& batch, const Model& model, BatchResult& result) {
  const SequenceStates states = answers_.begin(batch, result);
  trace::Span span("batch", "runner");
  span.note("step", static_cast<int64_t>(batch.step));
  StoredRows stored{.step = batch.step};
  const auto note_stored = [&](int layers) {
    stored.layers = layers;
    set_stored(stored);
  };
  const FunctionRef<void(int)> on_stored = note_stored;
  for (PartCursor cursor;;) {
    cut_part(batch, states, max_rows_, cursor, part_);
    if (part_.tokens.empty()) return;
    stored.complete = stored.rows;
    stored.rows += static_cast<int64_t>(part_.tokens.size());
    const kernels::Rows hidden = engine_->rows(static_cast<int64_t>(part_.tokens.size()));
    model.embed(part_.tokens, hidden, engine_->ops());
    for (const FeatureRow& row : part_.features) {
      std::copy_n(row.embedding, hidden.width, hidden.row(row.row));
    }
    if (!part_.made_rows.empty()) row_source_->fill(part_.made_rows, hidden, model, engine_->ops());
    engine_->forward(model, {.positions = part_.positions,
                             .sequences = part_.sequences,
                             .positions3 = part_.positions3,
                             .additions = part_.additions,
                             .captures = part_.captures,
                             .on_stored = &on_stored});
    for (const CapturedRow& captured : part_.captures) {
      const kernels::Rows row(captured.to, 1, hidden.width);
      if (captured.final_norm) model.final_norm(row, row, engine_->ops());
    }
    for (const SummedRow& summed : part_.sums) {
      summed_row_.resize(static_cast<std::size_t>(hidden.width));
      const kernels::Rows row(summed_row_.data(), 1, hidden.width);
      model.final_norm(hidden.slice(summed.row, 1), row, engine_->ops());
      summed.sum->add(summed.position, summed_row_.data());
    }
    answers_.answer(batch, states, part_.logit_rows, hidden, model, result);
  }
}

}  // namespace millrace
