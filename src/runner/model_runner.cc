#include "runner/model_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/cpu_info.h"
#include "base/trace.h"
#include "runner/traced_ops.h"
#include "tensor/float_buffer.h"

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

Result<RunnerFacts> facts_of(const ModelConfig& config, const ModelRunnerOptions& options) {
  if (options.threads < 0 || options.threads > kMaxPoolThreads) {
    return invalid_argument("threads is {}; wanted 0 (all CPUs) to {}", options.threads, kMaxPoolThreads);
  }
  if (options.max_rows < 1 || options.max_rows > kMaxRunnerRows) {
    return invalid_argument("max_rows is {}; wanted 1 to {}", options.max_rows, kMaxRunnerRows);
  }
  if (options.context_length < 0) {
    return invalid_argument("context_length is {}; wanted 0 (the model's own) or more", options.context_length);
  }
  RunnerFacts facts;
  facts.vocab_size = config.vocab_size;
  facts.context_length = config.max_position_embeddings;
  if (options.context_length > 0) facts.context_length = std::min(facts.context_length, options.context_length);
  facts.page_size = options.page_size;
  facts.page_count = options.page_count;
  facts.host_page_count = options.host_page_count;
  return facts;
}

std::unique_ptr<kernels::Ops> make_counted_ops(const ModelRunnerOptions& options, ThreadPool& pool) {
  std::unique_ptr<kernels::Ops> ops = kernels::make_ops(*options.isa, pool);
  if (options.meters != nullptr) ops = meter_ops(std::move(ops), *options.meters);
  return trace_ops(std::move(ops));
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::make(std::shared_ptr<const Model> model, ModelRunnerOptions options) {
  RETURN_IF_ERROR(owns_all_layers(*model));
  ASSIGN_OR_RETURN(const RunnerFacts facts, facts_of(model->config(), options));
  if (!options.isa) {
    ASSIGN_OR_RETURN(options.isa, kernels::resolve_isa());
  }
  if (!kernels::isa_available(*options.isa)) {
    return error(StatusCode::kUnsupported, "the instruction set {} is not available on this processor",
                 kernels::isa_name(*options.isa));
  }
  if (options.threads == 0) options.threads = cpu_info().usable_cpus;
  ASSIGN_OR_RETURN(KvPages pages, KvPages::make(model->config(), model->layers(),
                                                {.page_size = options.page_size,
                                                 .page_count = options.page_count,
                                                 .host_page_count = options.host_page_count,
                                                 .dtype = options.kv_dtype,
                                                 .poison = options.poison_pages}));
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(model), std::move(options), facts, std::move(pages)));
}

ModelRunner::ModelRunner(std::shared_ptr<const Model> model, ModelRunnerOptions options, RunnerFacts facts,
                         KvPages pages)
    : options_(std::move(options)),
      facts_(facts),
      model_(std::move(model)),
      pool_(options_.threads),
      ops_(make_counted_ops(options_, pool_)),
      pages_(std::move(pages)),
      prefault_(pages_.layers()),
      check_(facts_),
      workspace_(model_->config(), options_.max_rows),
      hidden_(float_buffer(options_.max_rows, model_->config().hidden_size)),
      logit_hidden_(float_buffer(kMaxLogitRows, model_->config().hidden_size)),
      logits_(float_buffer(kMaxLogitRows, facts_.vocab_size)) {
  for (int i = 0; i < pool_.size(); ++i) workers_.emplace_back(facts_.vocab_size);
  const auto rows = static_cast<std::size_t>(options_.max_rows);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  sequences_.reserve(rows);
  logit_rows_.reserve(rows);
  requests_.reserve(kMaxLogitRows);
  row_statuses_.resize(kMaxLogitRows);
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
    if (in_flight_ >= kMaxInFlight) {
      return error(StatusCode::kResourceExhausted, "{} batches are in flight; wanted fewer than {}", in_flight_,
                   kMaxInFlight);
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
  const uint64_t staged = staged_ ? staged_->weight_version() : 0;
  if (staged != 0 && std::ranges::any_of(queued_, [&](const Batch& b) { return b.weight_version == staged; })) {
    return error(StatusCode::kConflict, "a batch in flight switches to the weight version {}; try again later", staged);
  }
  if (reaper_.full()) {
    return error(StatusCode::kResourceExhausted, "{} old models wait to be freed; try again later", kMaxRetiredModels);
  }
  reaper_.release(std::exchange(staged_, std::move(model)));
  return ok_status();
}

void ModelRunner::drop_staged() {
  const std::lock_guard lock(mutex_);
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
// that is queued already is on its way before anybody is woken. False when the runner ends.
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

// Until there is a batch, or the end. Whoever waits for long gets KV memory ready, a piece at a time.
void ModelRunner::wait_for_job(std::unique_lock<std::mutex>& lock) {
  const auto any = [this] { return stopping_ || !queued_.empty(); };
  if (queue_changed_.wait_for(lock, std::chrono::milliseconds(kKvIdleMs), any)) return;
  for (bool more = true; more && !any();) {
    lock.unlock();
    more = prefault_.prefault(prefault_.rows_ahead());
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
  result.status = check_.check(batch);
  if (batch.weight_version != 0 && batch.weight_version != model.weight_version()) {
    result.status = internal_error("the batch names the weight version {}, which is not staged; {} serves",
                                   batch.weight_version, model.weight_version());
  }
  if (result.status.ok()) result.status = pages_.copy(batch.copies, pool_);
  if (result.status.ok()) {
    prefault_.add_used(batch);
    for (int i = 0; i < kKvPrefaultsInStep && prefault_.prefault_in_step(); ++i) {
    }
    prepare(batch, result);
    compute(batch, model, result);
  }
  masks_.end_batch();
  in_flight_tokens_.remember(batch, result);
  last_end_ = std::chrono::steady_clock::now();
  result.compute_us = duration_cast<microseconds>(*last_end_ - begin).count();
  return result;
}

// A place in the result for each sequence that answers, the tokens in flight for all, and masks. A sequence whose token
// never came, or whose grammar allows none, fails alone.
void ModelRunner::prepare(Batch& batch, BatchResult& result) {
  states_.assign(batch.sequences.size(), {});
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    SequenceStep& sequence = batch.sequences[i];
    Status status = in_flight_tokens_.resolve(sequence);
    if (status.ok()) status = masks_.fill(sequence, states_[i].mask);
    states_[i].skipped = !status.ok();
    if (!sequence.answers()) continue;
    states_[i].answer = result.tokens.size();
    SampledToken& answer = result.tokens.emplace_back();
    answer.request = sequence.request;
    answer.status = std::move(status);
    if (!states_[i].skipped) answer.prompt_logprobs.resize(sequence.score_targets.size());
  }
}

void ModelRunner::compute(const Batch& batch, const Model& model, BatchResult& result) {
  trace::Span span("batch", "runner");
  span.note("step", static_cast<int64_t>(batch.step));
  for (Cursor cursor; cursor.sequence < batch.sequences.size();) {
    fill_part(batch, cursor);
    if (tokens_.empty()) break;  // only skipped sequences were left
    compute_part(model);
    answer_part(batch, model, result);
  }
}

// Takes rows from the cursor on until the workspace is full: one token a row, in the batch's order.
void ModelRunner::fill_part(const Batch& batch, Cursor& cursor) {
  tokens_.clear();
  positions_.clear();
  sequences_.clear();
  logit_rows_.clear();
  const auto max_rows = static_cast<std::size_t>(options_.max_rows);
  while (cursor.sequence < batch.sequences.size() && tokens_.size() < max_rows) {
    const SequenceStep& sequence = batch.sequences[cursor.sequence];
    if (states_[cursor.sequence].skipped) {
      cursor = {cursor.sequence + 1, 0};
      continue;
    }
    const std::size_t count = std::min(sequence.tokens.size() - cursor.done, max_rows - tokens_.size());
    const int32_t position = sequence.position + static_cast<int32_t>(cursor.done);
    sequences_.push_back({.row_begin = static_cast<int64_t>(tokens_.size()),
                          .row_count = static_cast<int64_t>(count),
                          .kv_length_before = position,
                          .pages = sequence.pages});
    add_logit_rows(sequence, cursor.sequence, cursor.done, count);
    for (std::size_t i = 0; i < count; ++i) {
      tokens_.push_back(sequence.tokens[cursor.done + i]);
      positions_.push_back(position + static_cast<int32_t>(i));
    }
    cursor.done += count;
    if (cursor.done < sequence.tokens.size()) return;
    cursor = {cursor.sequence + 1, 0};
  }
}

// Of tokens [done, done + count) of `step`, which become the next rows: those that are scored, and the last one where
// a token follows it.
void ModelRunner::add_logit_rows(const SequenceStep& step, std::size_t sequence, std::size_t done, std::size_t count) {
  const std::size_t targets = step.score_targets.size(), end = done + count;
  const std::size_t score_begin = targets > 0 ? static_cast<std::size_t>(step.score_begin) : end;
  const auto row_of = [&](std::size_t token) { return static_cast<int64_t>(tokens_.size() + token - done); };
  for (std::size_t token = std::max(done, score_begin); token < std::min(end, score_begin + targets); ++token) {
    logit_rows_.push_back({.row = row_of(token), .sequence = sequence, .target = token - score_begin});
  }
  if (!step.sample || end < step.tokens.size()) return;
  if (logit_rows_.empty() || logit_rows_.back().row != row_of(end - 1)) {
    logit_rows_.push_back({.row = row_of(end - 1), .sequence = sequence});
  }
  logit_rows_.back().sample = true;
}

void ModelRunner::compute_part(const Model& model) {
  const kernels::Rows hidden(hidden_.as<float>().data(), static_cast<int64_t>(tokens_.size()),
                             model.config().hidden_size);
  trace::Span span("layers", "runner");
  span.note("rows", hidden.count);
  model.embed(tokens_, hidden, *ops_);
  model.forward({.positions = positions_, .sequences = sequences_, .kv = pages_.layers()}, hidden, workspace_, *ops_);
}

// Only the rows that answer something go through the vocabulary head, kMaxLogitRows at a time.
void ModelRunner::answer_part(const Batch& batch, const Model& model, BatchResult& result) {
  const int64_t width = model.config().hidden_size;
  const float* hidden = hidden_.as<float>().data();
  float* gathered = logit_hidden_.as<float>().data();
  for (std::size_t first = 0; first < logit_rows_.size(); first += kMaxLogitRows) {
    const std::size_t count = std::min<std::size_t>(kMaxLogitRows, logit_rows_.size() - first);
    const std::span<const LogitRow> group(logit_rows_.data() + first, count);
    requests_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      std::copy_n(hidden + group[i].row * width, width, gathered + static_cast<int64_t>(i) * width);
      requests_.push_back(batch.sequences[group[i].sequence].request);
    }
    const auto rows = static_cast<int64_t>(count);
    const kernels::Rows logits(logits_.as<float>().data(), rows, facts_.vocab_size);
    trace::Span span("head and sample", "runner");
    span.note("rows", rows);
    model.head(kernels::ConstRows(gathered, rows, width), logits, *ops_);
    if (options_.logits_hook) options_.logits_hook(batch.step, requests_, logits);
    answer_group(batch, group, logits, result);
  }
}

// Rows of one sequence may be in several hands: each row has its own status, and the first bad one becomes that of the
// sequence.
void ModelRunner::answer_group(const Batch& batch, std::span<const LogitRow> rows, kernels::Rows logits,
                               BatchResult& result) {
  pool_.parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    RowWorker& hand = workers_[static_cast<std::size_t>(worker)];
    for (int64_t i = begin; i < end; ++i) {
      const LogitRow& row = rows[static_cast<std::size_t>(i)];
      const SequenceStep& sequence = batch.sequences[row.sequence];
      SampledToken& out = result.tokens[states_[row.sequence].answer];
      const std::span<float> values(logits.row(i), static_cast<std::size_t>(logits.width));
      Status status;
      if (row.target != kNone) status = hand.score(values, sequence, row.target, out.prompt_logprobs[row.target]);
      if (status.ok() && row.sample) {
        const grammar::TokenMask& mask = states_[row.sequence].mask;
        status = hand.sample(values, sequence, out, mask.empty() ? nullptr : &mask);
      }
      row_statuses_[static_cast<std::size_t>(i)] = std::move(status);
    }
  });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Status& status = result.tokens[states_[rows[i].sequence].answer].status;
    if (status.ok()) status = std::move(row_statuses_[i]);
  }
}

}  // namespace millrace
