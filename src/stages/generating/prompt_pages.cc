#include "stages/generating/prompt_pages.h"

#include <utility>

#include "stages/generating/request_checks.h"

namespace millrace {

// The sequence of sources: the offer first, since the other server may ask at any time; then the folder, which costs no
// other machine anything; then the other server; and what is missing then is computed.
Result<std::optional<PromptPages::Begun>> PromptPages::begin(PreparingState next, int64_t now_ms) {
  const wire::TokenizedRequest& request = next.request;
  const ReqId id = request.id;
  RETURN_IF_ERROR(offer(request, now_ms));
  // Logprobs of a prompt need its rows here; the ids of pictures are numbers of this process alone.
  const int32_t scored_from = request.sampling.prompt_logprobs_from;
  const bool scores = scored_from >= 0 && std::cmp_less(scored_from, request.prompt.size());
  if (scores || next.parts.input) return std::optional(Begun{std::move(next)});
  if (saved_ && saved_->begin(id, request.prompt, request.extra_key, now_ms)) {
    // The scheduler learns of the request when it is in `out` of step(); until then it is here alone, and drop() ends
    // it.
    restoring_.insert_or_assign(id, std::move(next));
    return std::optional<Begun>();
  }
  return ask_server(std::move(next), now_ms);
}

Result<std::optional<PromptPages::Begun>> PromptPages::ask_server(PreparingState next, int64_t now_ms) {
  const wire::TokenizedRequest& request = next.request;
  const ReqId id = request.id;
  const wire::RemoteKv* remote = request.remote_kv ? &*request.remote_kv : nullptr;
  // A prefill server's own part is to compute: asking the decode server for the pages would be a circle.
  const bool computes = remote != nullptr && remote->role == wire::KvRole::kPrefill;
  if (!transfers_ || computes) return std::optional(Begun{std::move(next)});
  ASSIGN_OR_RETURN(const bool waits, transfers_->imports().begin(
                                         {id, request.prompt, request.extra_key, remote, request.traceparent}, now_ms));
  if (!waits) return std::optional(Begun{std::move(next)});
  // `request` above lies in `next`, which moves away below; begin() has copied what it keeps.
  next.asked_ms = now_ms;
  fetching_.insert_or_assign(id, std::move(next));
  return std::optional<Begun>();
}

// A request whose prompt's pages another server will want.
Status PromptPages::offer(const wire::TokenizedRequest& request, int64_t now_ms) {
  if (!request.remote_kv) return ok_status();
  // This refuses the field where there are no transfers, so `transfers_` is set below.
  RETURN_IF_ERROR(check_transfer_use(request, transfers_ && transfers_->by_request()));
  if (request.remote_kv->role != wire::KvRole::kPrefill) return ok_status();
  const auto page = static_cast<std::size_t>(page_size_);
  // Complete pages only: the last, partial one is never shared, since the request goes on writing to it.
  const auto complete = static_cast<std::ptrdiff_t>(request.prompt.size() / page * page);
  RETURN_IF_ERROR(transfers_->exports().on_offer(
      request.remote_kv->id, {request.prompt.begin(), request.prompt.begin() + complete}, request.extra_key, now_ms));
  offers_[request.id] = request.remote_kv->id;
  return ok_status();
}

// A request is in one of the two maps at most. Its entry goes first, so that a late take_ready() with its id finds
// nothing; an offer ends in any case, for the other server waits for it.
void PromptPages::drop(ReqId request, int64_t now_ms) {
  if (restoring_.erase(request) != 0) saved_->cancel(request);
  if (fetching_.erase(request) != 0) transfers_->imports().cancel(request, now_ms);
  on_end(request, error(StatusCode::kCancelled, "the request was aborted"), now_ms);
}

std::vector<PreparingState> PromptPages::take_all(int64_t now_ms) {
  std::vector<PreparingState> out;
  for (auto& [id, next] : std::exchange(restoring_, {})) {
    saved_->cancel(id);
    out.push_back(std::move(next));
  }
  for (auto& [id, next] : std::exchange(fetching_, {})) {
    transfers_->imports().cancel(id, now_ms);
    out.push_back(std::move(next));
  }
  return out;
}

void PromptPages::on_end(ReqId request, const Status& status, int64_t now_ms) {
  const auto offered = offers_.extract(request);
  if (!offered.empty()) transfers_->exports().on_offer_end(offered.mapped(), status, now_ms);
}

std::vector<PromptPages::Begun> PromptPages::step(int64_t now_ms) {
  std::vector<Begun> out;
  // Expired ones go to the scheduler as they are, without pages: it knows how a request that waited too long ends, and
  // what its client is sent.
  for (const ReqId id : late(restoring_, now_ms)) {
    saved_->cancel(id);
    out.push_back({std::move(restoring_.extract(id).mapped())});
  }
  for (const ReqId id : late(fetching_, now_ms)) {
    transfers_->imports().cancel(id, now_ms);
    PreparingState state = std::move(fetching_.extract(id).mapped());
    const double seconds = static_cast<double>(now_ms - state.asked_ms) * 1e-3;
    out.push_back({std::move(state), 0, wire::KvTransferred{.seconds = seconds}});
  }
  // The scheduler knows one list of finished writes; the folder takes those that it began, and the others are
  // transfers'.
  for (const PageTransfers::Done& done : scheduler_.transfers().take_done()) {
    if (saved_ && saved_->on_written(done, now_ms)) continue;
    if (transfers_) transfers_->on_written(done, now_ms);
  }
  if (saved_) {
    // The folder before the transfers: a request that is not served from it asks the other server in this very step.
    saved_->step(now_ms);
    for (const ReqId id : saved_->take_ready()) {
      auto waited = restoring_.extract(id);
      if (waited.empty()) continue;  // it was dropped
      auto begun = ask_server(std::move(waited.mapped()), now_ms);
      // The state went into ask_server(); the caller needs the id alone, to refuse the request.
      if (!begun.ok()) {
        out.push_back({.status = begun.status()});
        out.back().request.request.id = id;
      } else if (*begun) {
        out.push_back(std::move(**begun));
      }
    }
  }
  if (transfers_) {
    transfers_->step(now_ms);
    for (transfer::KvImporter::Ready& ready : transfers_->imports().take_ready()) {
      auto waited = fetching_.extract(ready.request);
      if (waited.empty()) continue;
      const double seconds = static_cast<double>(now_ms - waited.mapped().asked_ms) * 1e-3;
      out.push_back({std::move(waited.mapped()), ready.transferred_tokens,
                     wire::KvTransferred{seconds, ready.bytes, std::move(ready.way)}});
    }
  }
  return out;
}

// Counted from the request's arrival, not from the beginning of this wait: the limits are the client's.
std::vector<ReqId> PromptPages::late(const Waiting& waiting, int64_t now_ms) {
  std::vector<ReqId> out;
  for (const auto& [id, state] : waiting) {
    const int64_t waited_ms = now_ms - state.since_ms;
    const auto over = [&](int64_t limit_ms) { return limit_ms > 0 && waited_ms >= limit_ms; };
    if (over(state.request.timeout_ms) || over(state.request.queue_timeout_ms)) out.push_back(id);
  }
  return out;
}

std::optional<int> PromptPages::due() const {
  if ((transfers_ && transfers_->waits()) || (saved_ && saved_->waits())) return transfer::kTransferRestMs;
  if (transfers_ && transfers_->by_request()) return transfer::kTransferListenMs;
  return std::nullopt;
}

void PromptPages::describe(std::vector<PreparingRequest>& out, int64_t now_ms) const {
  for (const auto& [id, next] : restoring_) out.push_back(next.describe(now_ms, "disk"));
  for (const auto& [id, next] : fetching_) out.push_back(next.describe(now_ms, "transfer"));
}

void PromptPages::describe(std::vector<wire::Metric>& metrics) const {
  if (transfers_) transfers_->describe(metrics);
  if (saved_) saved_->describe(metrics);
}

}  // namespace millrace
