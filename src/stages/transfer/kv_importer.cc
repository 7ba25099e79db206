#include "stages/transfer/kv_importer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "stages/transfer/limits.h"

namespace millrace::transfer {

KvImporter::KvImporter(TransferEnv& env, ImporterOptions options) : env_(env), options_(std::move(options)) {
  peers_.resize(options_.peers);
  if (!peers_.empty()) router_.emplace(static_cast<int>(peers_.size()), ReplicaPolicy::kPrefixAware);
}

Result<bool> KvImporter::begin(const Wanted& wanted, int64_t now_ms) {
  // An error and no recompute: an id that comes twice is a fault of the proxy, which should learn of it.
  if (wanted.remote != nullptr && (imports_.contains(wanted.remote->id) || ended_.contains(wanted.remote->id))) {
    return invalid_argument("transfer_id {} was used before; wanted a new one for each request",
                            wanted.remote->id.text);
  }
  PageTransfers& pages = env_.pages();
  // From here on nothing fails the request: whatever stands in the way, it computes its prompt by itself.
  if (const Status status = pages.supported(); !status.ok()) return works_alone(wanted.request, "unsupported", status);
  const auto format = env_.format();
  if (!format.ok()) return works_alone(wanted.request, "weights", format.status());
  const int32_t page = format->page_size;
  const int32_t end = (static_cast<int32_t>(wanted.prompt.size()) - 1) / page;  // one token is left to compute
  const auto tokens = static_cast<std::ptrdiff_t>(end) * page;
  // Complete pages only. The rest of the last page is computed here, and so the first token's row.
  TransferPrefix prefix{pages.space_of(wanted.extra_key), {wanted.prompt.begin(), wanted.prompt.begin() + tokens}};
  const int32_t cached = pages.cached_pages(prefix);
  if ((end - cached) * page < std::max(options_.min_tokens, 1)) {
    ++alone_["short"];
    return false;
  }
  // Not where a proxy has named an id: P computes the prompt for that id and waits for a want of it.
  if (wanted.remote == nullptr && join(wanted, prefix)) return true;
  if (imports_.size() >= kMaxTransfers) {
    return works_alone(wanted.request, "limit",
                       error(StatusCode::kResourceExhausted, "{} transfers are open; the limit is {}", imports_.size(),
                             kMaxTransfers));
  }
  Import import{.waiting = {wanted.request},
                .prefix = std::move(prefix),
                .from_page = cached,
                .begun_ms = now_ms,
                .traceparent = wanted.traceparent};
  Status asked;
  if (wanted.remote != nullptr) {
    import.peer = wanted.remote->peer;
    // No other server is tried: the proxy has one compute this prompt.
    asked = ask(import, wanted.remote->id, *format, now_ms);
  } else {
    asked = ask_any(std::move(import), *format, std::nullopt, now_ms);
  }
  if (!asked.ok()) return works_alone(wanted.request, "no_peer", asked);
  return true;
}

// Sends the want to the import's peer; then it is open. An error leaves it as it was.
Status KvImporter::ask(Import& import, const TransferId& id, const wire::KvFormat& format, int64_t now_ms) {
  const auto end = static_cast<int32_t>(import.prefix.tokens.size()) / format.page_size;
  // Made anew for each server that is asked: parts are numbered from 0 by each.
  import.receiver.emplace(id, import.from_page, end, env_.pages().layers(), format.page_bytes, now_ms);
  // Of this try: pages that an earlier one began and did not complete are not continued, as the parts are other ones.
  import.number = next_import_++;
  import.want = wire::KvWant{.id = id,
                             .reply_to = options_.reply_to,
                             .format = format,
                             .extra_key = import.prefix.space.extra_key,
                             .tokens = import.prefix.tokens,
                             .from_page = import.from_page,
                             .reader = env_.reader(),
                             .traceparent = import.traceparent};
  RETURN_IF_ERROR(send_want(import));
  // Only now: until the want is sent or waits for its connection there is nothing that has to end.
  imports_.emplace(id, std::move(import));
  return ok_status();
}

// The best of the servers that can be reached.
Status KvImporter::ask_any(Import import, const wire::KvFormat& format, std::optional<int> not_this, int64_t now_ms) {
  const auto hashes = router_ && router_->wants_prefix()
                          ? ReplicaRouter::prefix_of(import.prefix.tokens, import.prefix.space.extra_key)
                          : ReplicaRouter::Prefix();
  import.asked_tokens =
      static_cast<int64_t>(import.prefix.tokens.size()) - int64_t{import.from_page} * format.page_size;
  Status status = error(StatusCode::kUnavailable, "no server that computes prompts is available");
  while (const std::optional<int> replica = choose_peer(hashes, not_this, now_ms)) {
    Peer& peer = peers_[static_cast<std::size_t>(*replica)];
    import.replica = replica;
    import.peer = peer.endpoint;
    // Read before ask(), which moves the import away where it succeeds.
    const int64_t tokens = import.asked_tokens;
    status = ask(import, new_id(), format, now_ms);
    if (status.ok()) return router_->begin(*replica, hashes, tokens), status;
    peer.avoided_until_ms = now_ms + kRenewMs;  // it is being started again, perhaps
  }
  return status;
}

std::optional<int> KvImporter::choose_peer(const ReplicaRouter::Prefix& hashes, std::optional<int> not_this,
                                           int64_t now_ms) {
  if (!router_) return std::nullopt;
  // Three reasons against a server: it is not in the table, it failed a short while ago, or this very import failed
  // with it.
  std::vector<bool> serves;
  for (const Peer& peer : peers_) {
    const bool excluded = not_this && static_cast<std::size_t>(*not_this) == serves.size();
    serves.push_back(!peer.endpoint.empty() && peer.avoided_until_ms <= now_ms && !excluded);
  }
  return router_->choose(hashes, serves);
}

void KvImporter::set_peers(const std::vector<TransferPeers::Replica>& peers, int64_t now_ms) {
  // All endpoints first, then the ends: an import that fails asks another server at once, and must not find one of the
  // old table.
  std::vector<int> gone;
  for (std::size_t i = 0; i < peers_.size() && i < peers.size(); ++i) {
    Peer& known = peers_[i];
    const bool anew = !peers[i].endpoint.empty() && known.incarnation != peers[i].incarnation;
    if (!known.endpoint.empty() && (anew || known.endpoint != peers[i].endpoint)) gone.push_back(static_cast<int>(i));
    known.endpoint = peers[i].endpoint;
    if (!anew) continue;
    known.incarnation = peers[i].incarnation;
    known.avoided_until_ms = 0;
    env_.connect(known.endpoint);
    // A new incarnation has an empty cache, so what its predecessor was given is no reason to ask it.
    router_->forget(static_cast<int>(i));
  }
  for (const int replica : gone) {
    std::vector<TransferId> ids;
    for (const auto& [id, import] : imports_) {
      if (import.replica == replica) ids.push_back(id);
    }
    for (const TransferId& id : ids) {
      // By id: end() erases imports and, asking another server, adds some.
      end(imports_.find(id), error(StatusCode::kUnavailable, "the server is gone"), now_ms, false, Cause::kPeer);
    }
  }
}

bool KvImporter::join(const Wanted& wanted, const TransferPrefix& prefix) {
  for (auto& [id, import] : imports_) {
    // All tokens are compared, as everywhere: a shared hash would give a request another prompt's pages.
    if (import.prefix.space != prefix.space || import.prefix.tokens != prefix.tokens) continue;
    import.waiting.push_back(wanted.request);
    return true;
  }
  return false;
}

Status KvImporter::send_want(Import& import) {
  if (!import.want) return ok_status();
  const Status status = env_.send(import.peer, *import.want);
  if (status.code() == StatusCode::kResourceExhausted) return ok_status();  // at the next step
  if (status.ok()) import.want.reset();
  return status;
}

TransferId KvImporter::new_id() {
  const uint64_t number = next_id_++;
  // The seed distinguishes processes, so that P cannot take a restarted D's id for one that has ended.
  return {fmt::format("xfer-{:016x}{:016x}", options_.id_seed, number)};
}

bool KvImporter::works_alone(ReqId request, const char* reason, const Status& status) {
  ++alone_[reason];
  LOG_DEBUG("request {}: no transfer: {}", request.value, status.to_string());
  return false;
}

void KvImporter::cancel(ReqId request, int64_t now_ms) {
  for (auto it = imports_.begin(); it != imports_.end(); ++it) {
    if (std::erase(it->second.waiting, request) == 0) continue;
    if (it->second.waiting.empty()) {
      end(it, error(StatusCode::kCancelled, "no request waits for it any more"), now_ms, true);
    }
    break;
  }
  std::erase_if(ready_, [&](const Ready& ready) { return ready.request == request; });
}

void KvImporter::on_part(wire::KvPart part, int64_t now_ms) {
  const auto it = imports_.find(part.id);
  if (it == imports_.end()) {
    ++counters_.ignored;
    return;
  }
  Import& import = it->second;
  const Result<KvReceiver::Part> verdict = import.receiver->on_part(part, now_ms);
  if (!verdict.ok()) return end(it, verdict.status(), now_ms, true, Cause::kPeer);
  if (*verdict == KvReceiver::Part::kRepeated) {
    ++counters_.ignored;
    return;
  }
  if (*verdict == KvReceiver::Part::kAskAgain) {
    ++counters_.again;
    if (const Status status = report(import); !status.ok()) end(it, status, now_ms, false, Cause::kPeer);
    return;
  }
  ++counters_.parts;
  counters_.parts_in_messages += part.relay.empty();
  counters_.parts_of_layers += part.layers < env_.pages().layers();
  counters_.bytes += static_cast<uint64_t>(import.receiver->bytes_of(part));
  import.bytes += static_cast<uint64_t>(import.receiver->bytes_of(part));
  const std::string way = part.relay.empty() ? "messages" : part.relay;
  import.way = import.way.empty() || import.way == way ? way : "mixed";
  // A server that keeps its window has kWindowParts on their way at most. More is memory that nothing here bounds.
  constexpr std::size_t kMost = 2 * static_cast<std::size_t>(kWindowParts);
  if (import.received.size() >= kMost) {
    return end(it,
               error(StatusCode::kResourceExhausted, "{} parts came that were not taken; the limit is {}",
                     import.received.size() + 1, kMost),
               now_ms, true, Cause::kPeer);
  }
  const LayerSpan layers{part.first_layer, part.first_layer + part.layers};
  // In the sequence of the parts' numbers, whatever the sequence in which relays bring their bytes: pages can only be
  // cached behind those below them.
  import.received.push_back({{part.number, part.first_page, part.pages, layers}, std::nullopt});
  if (part.relay.empty()) {
    import.received.back().bytes = SharedBytes::of(std::move(part.bytes.bytes));
    return write_or_end(it, now_ms);
  }
  // A relay that fails is the other server's, as far as can be seen here.
  if (const Status status = begin_fetch(import, part); !status.ok()) end(it, status, now_ms, true, Cause::kPeer);
}

Status KvImporter::begin_fetch(Import& import, const wire::KvPart& part) {
  const Result<uint64_t> ticket = env_.fetch(part, static_cast<std::size_t>(import.receiver->bytes_of(part)));
  if (!ticket.ok()) return on_lost(import, std::prev(import.received.end()), ticket.status());
  import.received.back().ticket = *ticket;
  return ok_status();
}

void KvImporter::on_fetched(TransferEnv::Fetched fetched, int64_t now_ms) {
  const auto it = imports_.find(fetched.id);
  if (it == imports_.end()) return;
  Import& import = it->second;
  const auto part = std::find_if(import.received.begin(), import.received.end(),
                                 [&](const Received& each) { return each.ticket == fetched.ticket; });
  if (part == import.received.end()) return;  // it is asked for again, with all that follows
  if (fetched.status.ok()) {
    part->ticket.reset();
    part->bytes = std::move(fetched.bytes);
    return write_or_end(it, now_ms);
  }
  const Status status = on_lost(import, part, fetched.status);
  if (!status.ok()) end(it, status, now_ms, true, Cause::kPeer);
}

// The part and all that follow come once more.
Status KvImporter::on_lost(Import& import, std::deque<Received>::iterator part, const Status& status) {
  LOG_WARNING("transfer: part {} did not come through its relay, and is asked for again: {}", part->run.number,
              status.to_string());
  std::vector<KvReceiver::Run> newest;
  // P sends from one part on, so those behind the lost one come again too, and what is here of them goes.
  for (auto each = part; each != import.received.end(); ++each) newest.push_back(each->run);
  RETURN_IF_ERROR(import.receiver->on_lost(newest, status).status());
  import.received.erase(part, import.received.end());
  ++counters_.again;
  return report(import);
}

// What cannot be written is this server's fault, whichever way the bytes came: no other one is asked for them.
void KvImporter::write_or_end(Imports::iterator it, int64_t now_ms) {
  if (const Status status = write_next(it->first, it->second); !status.ok()) end(it, status, now_ms, true);
}

// One write at a time, of all that has come since of the same layers, without a gap: what lies below it must be cached.
Status KvImporter::write_next(const TransferId& id, Import& import) {
  // The oldest part decides: later ones may be here already, but their pages lie above a gap.
  if (import.writing || import.received.empty() || import.received.front().ticket) return ok_status();
  // They wait here, and step() tries again. The other server sends no more than its window beyond them.
  if (env_.pages().full()) return ok_status();
  KvReceiver::Run all = import.received.front().run;
  all.pages = 0;
  Write write{.id = id};
  std::vector<SharedBytes> bytes;
  for (; !import.received.empty() && !import.received.front().ticket; import.received.pop_front()) {
    const KvReceiver::Run& run = import.received.front().run;
    if (run.first_page != all.end() || run.layers != all.layers) break;
    bytes.push_back(std::move(import.received.front().bytes));
    all.pages += run.pages;
    ++write.parts;
  }
  PageTransfers& pages = env_.pages();
  // A page counts when its last layers are written; the layers before add nothing that a request could use.
  if (all.layers.end == pages.layers()) write.pages = all.pages;
  const uint64_t ticket = next_ticket_++;
  RETURN_IF_ERROR(pages.write_layers(ticket, import.number, import.prefix, all.first_page, all.pages, all.layers,
                                     std::move(bytes)));
  import.writing = true;
  tickets_[ticket] = std::move(write);
  return ok_status();
}

void KvImporter::on_written(const PageTransfers::Done& done, int64_t now_ms) {
  const auto ticket = tickets_.find(done.ticket);
  if (ticket == tickets_.end()) return;
  const Write write = std::move(ticket->second);
  tickets_.erase(ticket);
  const auto it = imports_.find(write.id);
  if (it == imports_.end()) return;
  if (!done.status.ok()) return end(it, done.status, now_ms, true);
  Import& import = it->second;
  import.writing = false;
  import.receiver->on_written(write.parts);
  import.written_pages += write.pages;
  if (import.receiver->complete()) return end(it, ok_status(), now_ms, true);
  if (const Status status = report(import); !status.ok()) return end(it, status, now_ms, false, Cause::kPeer);
  write_or_end(it, now_ms);
}

Status KvImporter::report(Import& import) {
  // Also the heartbeat of the transfer: P keeps its pages for kLeaseMs after the last one of these.
  wire::Message taken = import.receiver->taken(options_.reply_to);
  const Status status = env_.send(import.peer, taken);
  return status.code() == StatusCode::kResourceExhausted ? ok_status() : status;  // the next report is soon
}

void KvImporter::on_end(const wire::KvEnd& ended, int64_t now_ms) {
  const auto it = imports_.find(ended.id);
  if (it == imports_.end()) {
    ++counters_.ignored;
    return;
  }
  const Status status = ended.failure ? Status(ended.failure->code, ended.failure->message)
                                      : error(StatusCode::kCancelled, "the other server ended the transfer");
  Import& import = it->second;
  // One that is stopping, or has no space, will be so for a while.
  if (import.replica && status.code() == StatusCode::kUnavailable && !import.receiver->begun()) {
    peers_[static_cast<std::size_t>(*import.replica)].avoided_until_ms = now_ms + kAvoidMs;
  }
  end(it, status, now_ms, false, Cause::kPeer);
}

void KvImporter::step(int64_t now_ms) {
  ended_.expire(now_ms);
  for (auto it = imports_.begin(); it != imports_.end();) {
    const auto next = std::next(it);
    Import& import = it->second;
    if (const Status status = send_want(import); !status.ok()) {
      end(it, status, now_ms, false, Cause::kPeer);
      it = next;
      continue;
    }
    // What found the queue of writes full.
    if (const Status status = write_next(it->first, import); !status.ok()) {
      end(it, status, now_ms, true);
      it = next;
      continue;
    }
    const KvReceiver::Due due = import.receiver->due(now_ms);
    if (due == KvReceiver::Due::kGiveUp) {
      if (import.replica) peers_[static_cast<std::size_t>(*import.replica)].avoided_until_ms = now_ms + kAvoidMs;
      end(it, error(StatusCode::kDeadline, "no pages came for {} ms", kProgressTimeoutMs), now_ms, true, Cause::kPeer);
    } else if (due == KvReceiver::Due::kRenew && !import.want) {
      if (const Status status = report(import); !status.ok()) end(it, status, now_ms, false, Cause::kPeer);
    }
    it = next;
  }
}

void KvImporter::end(Imports::iterator it, const Status& status, int64_t now_ms, bool notify, Cause cause) {
  // Taken out of imports_ before anything else: ask_another() adds an import, and messages of the old one must find
  // none.
  const TransferId id = it->first;
  Import import = std::move(it->second);
  imports_.erase(it);
  // Late and repeated messages of this id begin nothing.
  ended_.add(id, now_ms);
  env_.drop_fetches(id);
  // Incomplete pages are free once no batch writes to them; complete ones are cached and stay.
  env_.pages().end_import(import.number);
  counters_.end(status);
  waited_ms_ += now_ms - import.begun_ms;
  // The load that begin() counted for this server, also where it failed.
  if (import.replica) router_->end(*import.replica, import.asked_tokens);
  if (notify) {
    std::optional<wire::Failure> failure;
    if (!status.ok()) failure = wire::Failure{status.code(), status.message()};
    wire::Message message = wire::KvEnd{id, std::move(failure)};
    (void)env_.send(import.peer, message);  // or P's lease ends by itself
  }
  const bool failed = !status.ok() && status.code() != StatusCode::kCancelled;
  // The prefix has complete pages only, so the division is exact; before it, a long prompt's product has over 32 bits.
  const int32_t page = static_cast<int32_t>(import.prefix.tokens.size()) / import.receiver->end_page();
  const int32_t tokens = import.written_pages * page;
  const uint64_t request = import.waiting.empty() ? 0 : import.waiting.front().value;
  if (failed && cause == Cause::kPeer && ask_another(import, now_ms)) {
    LOG_WARNING("transfer {}: request {} asks another server for what has not arrived ({} tokens have): {}", id.text,
                request, tokens, status.to_string());
    return;
  }
  if (failed) {
    LOG_WARNING("transfer {}: request {} computes what has not arrived ({} tokens have): {}", id.text, request, tokens,
                status.to_string());
  }
  // Also after a failure: each request then begins with what is cached.
  for (const ReqId waiting : import.waiting) ready_.push_back({waiting, tokens, import.bytes, import.way});
}

// Once: a prompt that ends one server after the other is computed here.
bool KvImporter::ask_another(Import& failed, int64_t now_ms) {
  // Not for a server that the request named itself, as no other has been sent the prompt.
  if (!failed.replica || failed.second || failed.waiting.empty()) return false;
  const auto format = env_.format();
  if (!format.ok()) return false;
  // Asked anew: the failed one's complete pages are cached, and others may have been evicted or computed meanwhile.
  const int32_t cached = env_.pages().cached_pages(failed.prefix);
  const int64_t missing = static_cast<int64_t>(failed.prefix.tokens.size()) - int64_t{cached} * format->page_size;
  if (missing < std::max(options_.min_tokens, 1)) return false;
  Import next{.waiting = failed.waiting,
              .prefix = failed.prefix,
              .second = true,
              .from_page = cached,
              .written_pages = failed.written_pages,
              .bytes = failed.bytes,
              .way = failed.way,
              .begun_ms = now_ms,
              .traceparent = failed.traceparent};
  if (!ask_any(std::move(next), *format, failed.replica, now_ms).ok()) return false;
  ++asked_another_;
  return true;
}

void KvImporter::stop(const Status& status, int64_t now_ms) {
  // It ends, as Cause::kSelf begins no other import.
  while (!imports_.empty()) end(imports_.begin(), status, now_ms, true);
}

void KvImporter::describe(std::vector<wire::Metric>& metrics) const {
  counters_.describe("decode", imports_.size(), metrics);
  for (const auto& [reason, count] : alone_) {
    metrics.push_back({fmt::format("kv_transfers_not_asked_total{{reason={}}}", reason), static_cast<double>(count)});
  }
  metrics.push_back({"kv_transfers_asked_another_total", static_cast<double>(asked_another_)});
  metrics.push_back({"kv_transfer_wait_seconds_total", static_cast<double>(waited_ms_) / 1000});
}

}  // namespace millrace::transfer
