#include "stages/transfer/kv_exporter.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "stages/transfer/format_check.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvExporter::KvExporter(TransferEnv& env, std::optional<PrefillJobs> jobs, int64_t layers_bytes, StageSpans spans)
    : env_(env), jobs_(std::move(jobs)), layers_bytes_(layers_bytes), spans_(std::move(spans)) {}

void KvExporter::on_want(wire::KvWant want, int64_t now_ms) {
  const TransferId id = want.id;
  const auto it = exports_.find(id);
  if (it == exports_.end()) {
    // Refused with a message and not in silence: D waits 10 s for the first part otherwise.
    if (const Status status = check(want); !status.ok()) return refuse(id, want.reply_to, status);
    Export& open = exports_[id];
    open.number = next_++;
    open.want = std::move(want);
    open.span = spans_.begin(open.want->traceparent);
    open.last_seen_ms = now_ms;
    if (!jobs_) {
      ++early_;  // its request is to come
      return;
    }
    begin(open, id);
    return;
  }
  Export& open = it->second;
  if (open.want) {  // the first one has the id
    // A repeated want, which the network may cause, is a sign of life and nothing more.
    if (open.want->reply_to == want.reply_to && open.want->tokens == want.tokens) {
      open.last_seen_ms = now_ms;
      ++counters_.ignored;
      return;
    }
    return refuse(id, want.reply_to, error(StatusCode::kConflict, "the transfer id is in use"));
  }
  // The offer is refused to this server but stays open: the right one may still come.
  Status status = check(want);
  if (status.ok()) status = match(open, want);
  if (!status.ok()) return refuse(id, want.reply_to, status);
  open.want = std::move(want);
  open.span = spans_.begin(open.want->traceparent);
  open.last_seen_ms = now_ms;
  begin(open, id);
}

// Whether this server can serve it at all.
Status KvExporter::check(const wire::KvWant& want) const {
  if (ended_.contains(want.id)) return error(StatusCode::kConflict, "the transfer has ended already");
  RETURN_IF_ERROR(env_.pages().supported());
  ASSIGN_OR_RETURN(const wire::KvFormat ours, env_.format());
  RETURN_IF_ERROR(same_format(want.format, ours));
  // What was begun goes on while the server drains, and is within the limits already.
  if (exports_.contains(want.id)) return ok_status();
  if (drains_) return error(StatusCode::kUnavailable, "the server is stopping and begins no new transfer");
  if (!jobs_ && early_ >= kMaxEarlyWants) {
    return error(StatusCode::kResourceExhausted, "{} transfers wait for their requests; the limit is {}", early_,
                 kMaxEarlyWants);
  }
  if (exports_.size() < kMaxTransfers) return ok_status();
  return error(StatusCode::kResourceExhausted, "{} transfers are open; the limit is {}", exports_.size(),
               kMaxTransfers);
}

// Whether the pages of the offer are those that are wanted.
Status KvExporter::match(const Export& open, const wire::KvWant& want) const {
  // The want may have fewer tokens: D leaves one token to compute, so a prompt of whole pages lacks its last page
  // there.
  const bool same = want.extra_key == open.extra_key && want.tokens.size() <= open.tokens.size() &&
                    std::equal(want.tokens.begin(), want.tokens.end(), open.tokens.begin());
  if (same) return ok_status();
  return error(StatusCode::kConflict, "the transfer id is of another prompt, or of another cache_salt or extra_key");
}

// There is a want, and whatever it needs to have come before.
void KvExporter::begin(Export& open, const TransferId& id) {
  const wire::KvWant& want = *open.want;
  const int32_t end = static_cast<int32_t>(want.tokens.size()) / want.format.page_size;
  const int32_t layers = env_.pages().layers();
  open.prefix = TransferPrefix{env_.pages().space_of(want.extra_key), want.tokens};
  open.sender.emplace(id, KvSender::Range{want.from_page, end, layers, want.format.page_bytes / layers, layers_bytes_});
  open.seen_changes = 0;
  if (!jobs_ || env_.pages().cached_pages(*open.prefix) >= end) return;
  open.job = next_++;
  open.computing = true;
  // Before begin(), so that on_job_end() finds the transfer however soon it comes.
  jobs_of_[*open.job] = id;
  jobs_->begin(*open.job, want.tokens, want.extra_key);
}

void KvExporter::on_taken(const wire::KvTaken& taken, int64_t now_ms) {
  const auto it = exports_.find(taken.id);
  if (it == exports_.end() || !it->second.want) {
    return refuse(taken.id, taken.reply_to, error(StatusCode::kNotFound, "no such transfer is open here"));
  }
  Export& open = it->second;
  // The id alone is no proof: a server that guesses one must not move another's window.
  if (open.want->reply_to != taken.reply_to) {
    ++counters_.ignored;
    return;
  }
  open.last_seen_ms = now_ms;
  if (!open.sender) return;  // its request has not come yet
  // It was read for a number that comes later now; it is read again when its turn comes.
  if (taken.again) open.part.reset();
  const uint64_t before = open.sender->resent();
  const Status status = open.sender->on_taken(taken);
  // One that waits to be sent again may have been taken meanwhile, as it was sent the first time.
  if (open.part && open.part->number < taken.parts) open.part.reset();
  if (const uint64_t parts = open.sender->resent() - before; parts > 0) resend_in_messages(open, taken.id, parts);
  if (!status.ok()) fail(it, status, now_ms);
}

// And so goes all that follows: a relay may have been why these were asked for again. Logged once for each server.
void KvExporter::resend_in_messages(Export& open, const TransferId& id, uint64_t parts) {
  counters_.again += parts;
  open.in_messages = true;
  if (noted_.size() >= kMaxEndpoints) noted_.clear();
  if (!noted_.insert(open.want->reply_to).second) return;
  LOG_WARNING(
      "transfer {}: {}-{} asked for {} parts again; they and what follows go in messages, not through a relay. A relay "
      "that does not work is a reason, or a server that has no time; others of it are counted, not logged",
      id.text, open.want->reader.stage, open.want->reader.replica, parts);
}

void KvExporter::on_end(const wire::KvEnd& end, int64_t now_ms) {
  const auto it = exports_.find(end.id);
  if (it == exports_.end() || !it->second.want) {
    ++counters_.ignored;
    return;
  }
  const Status why = end.failure ? Status(end.failure->code, end.failure->message) : ok_status();
  counters_.end(why);
  erase(it, why, now_ms);
}

void KvExporter::set_takers(const std::vector<TransferPeers::Replica>& takers, int64_t now_ms) {
  for (auto it = exports_.begin(); it != exports_.end();) {
    const auto next = std::next(it);
    const bool gone = it->second.want && std::none_of(takers.begin(), takers.end(), [&](const auto& taker) {
                        return taker.endpoint == it->second.want->reply_to;
                      });
    if (gone) {
      const Status why = error(StatusCode::kUnavailable, "the server that wanted it is gone");
      counters_.end(why);
      erase(it, why, now_ms);
    }
    it = next;
  }
}

void KvExporter::on_job_end(uint64_t job, const Status& status) {
  const auto found = jobs_of_.find(job);
  if (found == jobs_of_.end()) return;
  const auto it = exports_.find(found->second);
  jobs_of_.erase(found);
  if (it == exports_.end()) return;
  it->second.computing = false;
  // erase() cancels what `job` names, and this one is over.
  it->second.job.reset();
  it->second.seen_changes = 0;
  if (!status.ok()) LOG_WARNING("transfer {}: its prompt was not computed: {}", it->first.text, status.to_string());
}

Status KvExporter::on_offer(const TransferId& id, std::vector<int32_t> tokens, std::string extra_key, int64_t now_ms) {
  RETURN_IF_ERROR(env_.pages().supported());
  RETURN_IF_ERROR(env_.format().status());
  const auto it = exports_.find(id);
  if (ended_.contains(id) || (it != exports_.end() && it->second.offered)) {
    return invalid_argument("transfer_id {} was used before; wanted a new one for each request", id.text);
  }
  if (it == exports_.end() && exports_.size() >= kMaxTransfers) {
    return error(StatusCode::kResourceExhausted, "{} transfers are open; the limit is {}; try again later",
                 exports_.size(), kMaxTransfers);
  }
  // The want may have come first: a proxy sends both requests at the same time.
  Export& open = it == exports_.end() ? exports_[id] : it->second;
  if (it == exports_.end()) open.number = next_++;
  open.offered = open.computing = true;
  open.last_seen_ms = now_ms;
  open.tokens = std::move(tokens);
  open.extra_key = std::move(extra_key);
  open.prefix = TransferPrefix{env_.pages().space_of(open.extra_key), open.tokens};
  if (!open.want) return ok_status();
  // It is one with an offer now, whether it matches or not.
  CHECK(early_ > 0);
  --early_;
  if (const Status status = match(open, *open.want); !status.ok()) {
    refuse(id, open.want->reply_to, status);
    if (open.span) spans_.end(*std::exchange(open.span, std::nullopt), status);
    // The offer goes on without it; D computes.
    open.want.reset();
  } else {
    begin(open, id);
  }
  return ok_status();
}

void KvExporter::on_offer_end(const TransferId& id, const Status& status, int64_t now_ms) {
  const auto it = exports_.find(id);
  if (it == exports_.end() || !it->second.offered) return;
  it->second.computing = false;
  it->second.last_seen_ms = now_ms;
  it->second.seen_changes = 0;
  if (!status.ok()) fail(it, status.with_prefix("the request that computes ended"), now_ms);
}

void KvExporter::step(int64_t now_ms) {
  ended_.expire(now_ms);
  // Each once in a step: those whose connection is still being made go to the end.
  for (std::size_t left = refusals_.size(); left > 0; --left) {
    Refusal next = std::move(refusals_.front());
    refusals_.pop_front();
    const Status sent = env_.send(next.reply_to, next.end);
    if (sent.code() == StatusCode::kResourceExhausted) refusals_.push_back(std::move(next));
  }
  // For all transfers together. Reading pages costs the time of the thread that plans the next step.
  int64_t budget = kSentBytesPerStep;
  for (auto it = exports_.begin(); it != exports_.end();) {
    const auto next = std::next(it);
    Export& open = it->second;
    Status status = open.prefix ? advance(open, budget) : ok_status();
    if (status.ok() && expired(open, now_ms)) {
      status = error(StatusCode::kDeadline, "nothing came from the other server for {} ms", kLeaseMs);
    }
    if (!status.ok()) fail(it, status, now_ms);
    it = next;
  }
}

// Keeps what is cached by now, and sends what comes next of it.
Status KvExporter::advance(Export& open, int64_t& budget) {
  PageTransfers& pages = env_.pages();
  // Pages of the old weights may still be cached, but what follows would be of others: D wanted all of one set.
  if (open.prefix->space.weight_version != pages.space_of("").weight_version) {
    return error(StatusCode::kConflict, "the weights were switched");
  }
  // Walking the tree for each transfer in each step would cost more than the pages; most steps change nothing here.
  if (const uint64_t changes = pages.changes(); std::exchange(open.seen_changes, changes) != changes) {
    open.cached = pages.lease(open.number, *open.prefix);
  }
  if (!open.sender) return ok_status();
  if (const uint64_t failures = pages.failures(); std::exchange(open.seen_failures, failures) != failures) {
    // Which rows failed is not looked up. D has not cached these pages, so ending here costs time alone.
    if (open.sender->half_sent()) return error(StatusCode::kUnavailable, "a step whose layers were sent has failed");
  }
  RETURN_IF_ERROR(send_parts(open, budget));
  const auto end = static_cast<int32_t>(open.prefix->tokens.size()) / open.want->format.page_size;
  // Nothing computes any more and pages are missing: they were evicted, or the job failed.
  if (open.computing || open.sender->all_sent() || open.cached >= end) return ok_status();
  return error(StatusCode::kUnavailable, "{} of {} pages are cached", open.cached, end);
}

// What cannot go now goes at the next step.
Status KvExporter::send_parts(Export& open, int64_t& budget) {
  KvSender::Stored stored{.cached = open.cached};
  if (open.computing && !open.sender->all_sent()) {
    const PageTransfers::StoredPages now = env_.pages().stored_pages(*open.prefix);
    stored.stored = now.end;
    stored.layers = now.layers;
  }
  while (budget > 0) {
    if (!open.part) {
      std::optional<wire::KvPart> part = open.sender->next(stored);
      if (!part) return ok_status();
      const Status status = fill(open, *part);
      if (status.code() == StatusCode::kResourceExhausted) return ok_status();
      RETURN_IF_ERROR(status);
      // Counted when they are read, as that is what costs; a part that waits for its connection is read once.
      budget -= open.sender->bytes_of(*part);
      open.part = std::move(part);
    }
    wire::Message message = *open.part;
    const Status status = env_.send(open.want->reply_to, message);
    if (status.code() == StatusCode::kResourceExhausted) return ok_status();
    RETURN_IF_ERROR(status);
    open.sender->sent(*open.part);
    ++counters_.parts;
    counters_.parts_in_messages += open.part->relay.empty();
    counters_.parts_of_layers += open.part->layers < env_.pages().layers();
    counters_.bytes += static_cast<uint64_t>(open.sender->bytes_of(*open.part));
    ++open.parts;
    open.bytes += static_cast<uint64_t>(open.sender->bytes_of(*open.part));
    open.part.reset();
  }
  return ok_status();
}

// With its bytes. kResourceExhausted: later.
Status KvExporter::fill(const Export& open, wire::KvPart& part) {
  const auto bytes = static_cast<std::size_t>(open.sender->bytes_of(part));
  const std::shared_ptr<Buffer> buffer = buffers_.take(bytes);
  const LayerSpan layers{part.first_layer, part.first_layer + part.layers};
  const std::span<std::byte> to(buffer->data(), bytes);
  const Status read = env_.pages().read(*open.prefix, part.first_page, part.pages, to, layers);
  // The runner's thread may have ended the step since stored_pages(): its pages are cached when it is settled.
  if (open.computing && read.code() == StatusCode::kUnavailable) {
    return error(StatusCode::kResourceExhausted, "the step that stored these layers is not settled");
  }
  RETURN_IF_ERROR(read);
  if (open.in_messages) {
    part.bytes.bytes.assign(reinterpret_cast<const char*>(buffer->data()), bytes);
  } else {
    RETURN_IF_ERROR(env_.offer(open.want->reader, SharedBytes(buffer, buffer->data(), bytes), part));
  }
  // Last: it covers the relay's descriptor too.
  part.checksum = wire::kv_checksum(part);
  return ok_status();
}

// D reports every kRenewMs as long as it waits. An offer that no server wants yet is kept while its request runs.
bool KvExporter::expired(const Export& open, int64_t now_ms) const {
  if (!open.want && open.computing) return false;
  return now_ms - open.last_seen_ms >= kLeaseMs;
}

void KvExporter::refuse(const TransferId& id, const std::string& reply_to, const Status& status) {
  ++counters_.ignored;
  wire::Message end = wire::KvEnd{id, wire::Failure{status.code(), status.message()}};
  const bool later = env_.send(reply_to, end).code() == StatusCode::kResourceExhausted;
  if (later && refusals_.size() < kMaxEarlyWants) refusals_.push_back({reply_to, std::move(end)});
  // D's time limit is there too.
}

void KvExporter::fail(Exports::iterator it, const Status& status, int64_t now_ms) {
  LOG_WARNING("transfer {}: not sent: {}", it->first.text, status.to_string());
  counters_.end(status);
  if (it->second.want) {
    wire::Message end = wire::KvEnd{it->first, wire::Failure{status.code(), status.message()}};
    (void)env_.send(it->second.want->reply_to, end);
  }
  erase(it, status, now_ms);
}

void KvExporter::erase(Exports::iterator it, const Status& why, int64_t now_ms) {
  Export& open = it->second;
  if (open.span) {
    const auto tokens = static_cast<int64_t>(open.want->tokens.size());
    open.span->attributes.emplace_back("millrace.kv_transfer.tokens",
                                       tokens - int64_t{open.want->from_page} * open.want->format.page_size);
    open.span->attributes.emplace_back("millrace.kv_transfer.parts", static_cast<int64_t>(open.parts));
    open.span->attributes.emplace_back("millrace.kv_transfer.bytes", static_cast<int64_t>(open.bytes));
    spans_.end(std::move(*open.span), why);
  }
  // The same condition as where it was counted: a want whose offer has come was taken off by on_offer().
  if (open.want && !open.offered && !jobs_) {
    CHECK(early_ > 0);
    --early_;
  }
  env_.pages().end_lease(open.number);
  // Puts of parts that D did not fetch end here; otherwise they would hold credits until their lease.
  env_.drop_offers(it->first);
  if (open.job) {
    // Before cancel(): the end of a job that is cancelled is of no transfer any more.
    jobs_of_.erase(*open.job);
    jobs_->cancel(*open.job);
  }
  ended_.add(it->first, now_ms);
  exports_.erase(it);
}

void KvExporter::stop(const Status& status, int64_t now_ms) {
  while (!exports_.empty()) fail(exports_.begin(), status, now_ms);
}

void KvExporter::describe(std::vector<wire::Metric>& metrics) const {
  counters_.describe("prefill", exports_.size(), metrics);
  metrics.push_back({"kv_transfers_early", static_cast<double>(early_)});
}

}  // namespace millrace::transfer
