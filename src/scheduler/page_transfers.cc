#include "scheduler/page_transfers.h"

#include <algorithm>
#include <utility>

namespace millrace {

Status PageTransfers::supported() const {
  if (model_.kv_page_bytes == 0) {
    return error(StatusCode::kUnsupported, "this runner cannot read and write KV pages (a layer split)");
  }
  if (!memory_.shares_prefixes()) {
    return error(StatusCode::kUnsupported, "the prefix cache is off; transfers of KV pages need it");
  }
  // Version 0 is no namespace: pages written under it would be found by no request.
  if (memory_.weight_version() == 0) return error(StatusCode::kUnavailable, "the weights are not known yet");
  return ok_status();
}

int32_t PageTransfers::lease(uint64_t number, const TransferPrefix& prefix) {
  const SequenceMemory::LockedPrefix found = memory_.lock_prefix(prefix.space, prefix.tokens);
  const auto pages = static_cast<int32_t>(found.pages.size());
  // A lease that cannot be renewed for what is cached now ends: its share of the pool goes to others.
  if (pages == 0 || !memory_.set_lease(number, found.node, pages)) memory_.end_lease(number);
  memory_.unlock_prefix(found.node);
  return pages;
}

Status PageTransfers::check(const TransferPrefix& prefix, int32_t first, int32_t count) const {
  RETURN_IF_ERROR(supported());
  // In 64 bits: the numbers come from another server, and their sum may not fit in 32.
  const int64_t tokens = (int64_t{first} + count) * memory_.page_size();
  if (first < 0 || count < 1 || tokens > static_cast<int64_t>(prefix.tokens.size())) {
    return invalid_argument("pages [{}, {}) of {} tokens; wanted pages of {} tokens inside", first,
                            int64_t{first} + count, prefix.tokens.size(), memory_.page_size());
  }
  return ok_status();
}

Status PageTransfers::check_bytes(std::size_t given, int32_t count, LayerSpan layers) const {
  if (layers.begin < 0 || layers.begin >= layers.end || layers.end > this->layers()) {
    return invalid_argument("layers [{}, {}); wanted some of [0, {})", layers.begin, layers.end, this->layers());
  }
  const int64_t wanted = count * (model_.kv_page_bytes / this->layers() * layers.count());
  if (static_cast<int64_t>(given) == wanted) return ok_status();
  return invalid_argument("{} bytes for {} pages; wanted {}", given, count, wanted);
}

// The sequence of the batch that is computed with the most stored pages of the prefix. For which request is of no
// matter: equal tokens, weights and extra keys give the same bits.
PageTransfers::Computing PageTransfers::find_computing(const TransferPrefix& prefix) const {
  Computing best;
  const std::optional<StoredRows> stored = runner_.stored_rows();
  // The runner reports of the batch that it computes, which is the oldest in flight, or was: it may have ended
  // meanwhile.
  if (!stored || in_flight_.empty() || in_flight_.oldest().step != stored->step) return best;
  const BatchInFlight& batch = in_flight_.oldest();
  if (batch.weight_version != prefix.space.weight_version) return best;
  int64_t row = 0;
  for (const PlannedRows& rows : batch.rows) {
    row += rows.count;
    // By the last row of the sequence: all of its rows are stored so far, or at least to that layer.
    const int32_t layers = row <= stored->complete ? this->layers() : row <= stored->rows ? stored->layers : 0;
    const Sequence& sequence = *rows.sequence;
    // The same conditions as for the cache: what must not be published must not be sent either.
    const bool usable = layers > 0 && !sequence.ended && sequence.publishable &&
                        sequence.weight_version == batch.weight_version && sequence.extra_key == prefix.space.extra_key;
    if (!usable) continue;
    // `computed` counts rows before this batch; the pages that its rows complete count as well.
    const std::size_t length = std::min(static_cast<std::size_t>(sequence.computed + rows.count), prefix.tokens.size());
    const auto end = static_cast<int32_t>(length) / memory_.page_size();
    const auto tokens = static_cast<std::ptrdiff_t>(end) * memory_.page_size();
    // The cheap comparison first: most sequences of a batch are not of this prefix.
    if (end <= best.stored.end || !std::equal(sequence.tokens.begin(), sequence.tokens.begin() + tokens,
                                              prefix.tokens.begin(), prefix.tokens.begin() + tokens)) {
      continue;
    }
    best = {&sequence, {end, layers}};
  }
  return best;
}

PageTransfers::StoredPages PageTransfers::stored_pages(const TransferPrefix& prefix) const {
  return find_computing(prefix).stored;
}

// A page that comes back from the host tier is cached from the plan of its copy on, and has its bytes when the batch
// with that copy is settled. The plan's own batch may have been refused: then the next one brings them.
Status PageTransfers::read(const TransferPrefix& prefix, int32_t first, int32_t count, std::span<std::byte> to,
                           LayerSpan layers) {
  RETURN_IF_ERROR(check(prefix, first, count));
  if (layers == LayerSpan{}) layers.end = this->layers();
  RETURN_IF_ERROR(check_bytes(to.size(), count, layers));
  // Remembered, as it makes the scheduler submit a batch for the copies even where no request has rows.
  waits_for_loads_ = waits_for_loads_ || memory_.loads_due();
  if (loading_step_ || waits_for_loads_) {
    return error(StatusCode::kResourceExhausted, "pages are on their way from the host tier; try again later");
  }
  const auto tokens = static_cast<std::size_t>(first + count) * static_cast<std::size_t>(memory_.page_size());
  // Locked to look it up and released at once: nothing is evicted before this call returns.
  const SequenceMemory::LockedPrefix found = memory_.lock_prefix(prefix.space, std::span(prefix.tokens).first(tokens));
  memory_.unlock_prefix(found.node);
  std::vector<PageId> pages;
  // Cached pages before those that are computed now: they cannot fail any more.
  if (static_cast<int32_t>(found.pages.size()) >= first + count) {
    pages.assign(found.pages.begin() + first, found.pages.end());
  } else {
    const Computing computing = find_computing(prefix);
    if (computing.stored.end < first + count || computing.stored.layers < layers.end) {
      return error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first + count);
    }
    pages = computing.sequence->pages.pages(first, first + count);
  }
  // On the scheduler's thread, while the runner computes: it writes to none of these pages, or to other layers of them.
  RETURN_IF_ERROR(runner_.read_pages(pages, to, layers));
  // Counted with the last layer, so that a page in several parts counts once.
  if (layers.end == this->layers()) {
    counters_.exported_tokens += static_cast<uint64_t>(count) * static_cast<uint64_t>(memory_.page_size());
  }
  return ok_status();
}

Status PageTransfers::write(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count,
                            std::vector<SharedBytes> bytes) {
  // From kMaxImport on, where no caller's numbers are.
  const uint64_t import = next_import_++;
  const Status status = write_layers(ticket, import, prefix, first, count, {0, layers()}, std::move(bytes));
  // A refused write leaves no import open, which nothing would end.
  if (!status.ok()) end_import(import);
  return status;
}

Status PageTransfers::write_layers(uint64_t ticket, uint64_t import, const TransferPrefix& prefix, int32_t first,
                                   int32_t count, LayerSpan layers, std::vector<SharedBytes> bytes) {
  RETURN_IF_ERROR(check(prefix, first, count));
  if (prefix.space.weight_version != memory_.weight_version()) {
    return error(StatusCode::kConflict, "the weights are of version {} by now; the transfer is of version {}",
                 memory_.weight_version(), prefix.space.weight_version);
  }
  std::size_t given = 0;
  for (const SharedBytes& part : bytes) given += part.size_bytes();
  RETURN_IF_ERROR(check_bytes(given, count, layers));
  // Before open(), which locks: a caller that tries again and again must not hold a lock by that.
  if (full()) {
    return error(StatusCode::kResourceExhausted, "{} writes of KV pages wait; the limit is {}", queued_.size(),
                 kMaxQueuedWrites);
  }
  ASSIGN_OR_RETURN(const Imports::iterator it, open(import, prefix, first));
  Import& to = it->second;
  if (const Status status = take_pages(to, first, count, layers); !status.ok()) {
    // open() has made it for this write alone.
    if (to.pages.empty() && to.moving == 0) close(it);
    return status;
  }
  Write write{.ticket = ticket, .import = import, .first = first, .layers = layers, .bytes = std::move(bytes)};
  for (int32_t at = first - to.first; at < first + count - to.first; ++at) {
    Page& page = to.pages[static_cast<std::size_t>(at)];
    // Counted when it is queued and not when it is stored: the next write of these pages may be queued behind this one.
    page.begun = layers.end;
    write.pages.push_back(page.id);
  }
  ++to.moving;
  queued_.push_back(std::move(write));
  return ok_status();
}

// A new one needs all that lies below `first`; the lock comes first: that must not be evicted for the new pages.
Result<PageTransfers::Imports::iterator> PageTransfers::open(uint64_t number, const TransferPrefix& prefix,
                                                             int32_t first) {
  const auto known = imports_.find(number);
  if (known != imports_.end()) {
    if (!known->second.ended) return known;
    return error(StatusCode::kUnavailable, "the pages of this transfer were given up");
  }
  const auto below = static_cast<std::size_t>(first) * static_cast<std::size_t>(memory_.page_size());
  const auto found = memory_.lock_prefix(prefix.space, std::span(prefix.tokens).first(below));
  if (static_cast<int32_t>(found.pages.size()) < first) {
    memory_.unlock_prefix(found.node);
    return error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first);
  }
  return imports_.emplace(number, Import{.prefix = prefix, .first = first, .lock = found.node}).first;
}

Status PageTransfers::take_pages(Import& import, int32_t first, int32_t count, LayerSpan layers) {
  const int32_t end = import.first + static_cast<int32_t>(import.pages.size());
  bool follows = first >= import.first && first <= end && (first + count <= end || layers.begin == 0);
  for (int32_t page = first; follows && page < std::min(end, first + count); ++page) {
    // A gap in the layers would publish a page with bytes of whatever it held before.
    follows = import.pages[static_cast<std::size_t>(page - import.first)].begun == layers.begin;
  }
  if (!follows) {
    return invalid_argument("layers [{}, {}) of the pages [{}, {}) do not follow what was written of [{}, {})",
                            layers.begin, layers.end, first, first + count, import.first, end);
  }
  const int32_t more = first + count - end;
  std::vector<PageId> fresh;
  if (more > 0 && !memory_.begin_import(more, fresh)) {
    return error(StatusCode::kResourceExhausted, "{} KV pages are available; wanted {}", memory_.available(), more);
  }
  for (const PageId page : fresh) import.pages.push_back({page});
  return ok_status();
}

void PageTransfers::end_import(uint64_t import) {
  const auto it = imports_.find(import);
  if (it == imports_.end()) return;
  it->second.ended = true;
  // Otherwise the last write that is in flight closes it: the runner still writes to these pages.
  if (it->second.moving == 0) close(it);
}

// Its pages are free.
void PageTransfers::close(Imports::iterator it) {
  std::vector<PageId> pages;
  for (const Page& page : it->second.pages) pages.push_back(page.id);
  memory_.cancel_import(pages);
  memory_.unlock_prefix(it->second.lock);
  imports_.erase(it);
}

void PageTransfers::give_way() {
  for (auto& [number, import] : imports_) {
    if (import.moving > 0 || import.pages.empty()) continue;
    std::vector<PageId> pages;
    for (const Page& page : import.pages) pages.push_back(page.id);
    memory_.cancel_import(pages);
    memory_.unlock_prefix(std::exchange(import.lock, nullptr));
    import.pages.clear();
    import.ended = true;  // its owner sees it at the next write
  }
}

void PageTransfers::add_to(Batch& batch) {
  int64_t bytes = 0;
  while (!queued_.empty()) {
    for (const SharedBytes& part : queued_.front().bytes) bytes += static_cast<int64_t>(part.size_bytes());
    // At least one goes, however large; the rest waits for the next batch, as copying them delays this one's rows.
    if (!adding_.empty() && bytes > kMaxWrittenBytesInBatch) return;
    const Write& write = adding_.emplace_back(std::move(queued_.front()));
    queued_.pop_front();
    batch.writes.push_back({write.pages, write.bytes, write.layers});
  }
}

void PageTransfers::submitted(uint64_t step, bool loads) {
  if (!adding_.empty()) sent_.push_back({step, std::exchange(adding_, {})});
  if (loads) loading_step_ = step;
  waits_for_loads_ = false;
}

void PageTransfers::refused(const Status& status) {
  waits_for_loads_ = false;
  // Not queued again: each ends its import, and the request computes what is missing.
  for (Write& write : std::exchange(adding_, {})) end(write, status);
}

void PageTransfers::settle(const BatchResult& result, bool kv_lost) {
  // Batches settle in the sequence of their submission, so a newer one with loads keeps reads waiting.
  if (loading_step_ == result.step) loading_step_.reset();
  const bool failed = !result.status.ok() || kv_lost ||
                      std::ranges::any_of(result.tokens, [](const SampledToken& row) { return !row.status.ok(); });
  // One failed row is enough: which transfers had layers of it is not recorded.
  failures_ += failed ? 1 : 0;
  if (sent_.empty() || sent_.front().step != result.step) return;
  Sent sent = std::move(sent_.front());
  sent_.pop_front();
  Status status = result.status;
  if (status.ok() && kv_lost) status = error(StatusCode::kUnavailable, "the KV was lost");
  for (Write& write : sent.writes) end(write, status);
}

void PageTransfers::forget() {
  for (Write& write : std::exchange(queued_, {})) end(write, error(StatusCode::kUnavailable, "the KV was lost"));
  // Imports whose writes are in flight are closed by settle(), with the failure of their batch.
  give_way();
  memory_.revoke_leases();
}

void PageTransfers::end(Write& write, Status status) {
  const auto it = imports_.find(write.import);
  CHECK(it != imports_.end());
  Import& import = it->second;
  CHECK(import.moving > 0);
  --import.moving;
  // Written under the old weights and settled under the new ones: no request would find these pages, and they would be
  // counted as cached.
  if (status.ok() && import.prefix.space.weight_version != memory_.weight_version()) {
    status = error(StatusCode::kConflict, "the weights were switched meanwhile");
  }
  if (status.ok()) {  // also where nothing more comes: what is complete is of use
    CHECK(write.first >= import.first);
    const auto first = static_cast<std::size_t>(write.first - import.first);
    CHECK(first + write.pages.size() <= import.pages.size());
    for (std::size_t i = 0; i < write.pages.size(); ++i) {
      // Not where a write of the layers before has failed: the page would be published without them.
      Page& page = import.pages[first + i];
      if (page.stored == write.layers.begin) page.stored = write.layers.end;
    }
    publish(import);
  } else {
    import.ended = true;
  }
  const bool over = import.ended || import.pages.empty();
  if (over && import.moving == 0) close(it);
  // After close(): a reader finds the books as they are.
  done_.push_back({write.ticket, std::move(status)});
}

// The first pages that have all layers.
void PageTransfers::publish(Import& import) {
  std::vector<PageId> complete;
  for (; !import.pages.empty() && import.pages.front().stored == layers(); import.pages.pop_front()) {
    complete.push_back(import.pages.front().id);
  }
  if (complete.empty()) return;
  const auto page = static_cast<std::size_t>(memory_.page_size());
  const auto all = std::span<const int32_t>(import.prefix.tokens);
  const auto tokens = all.subspan(static_cast<std::size_t>(import.first) * page, complete.size() * page);
  // Below the locked node, so the tree is not walked from its root, and what lies below cannot have been evicted.
  memory_.publish_import(import.prefix.space, tokens, complete, import.lock);
  counters_.imported_tokens += tokens.size();
  import.first += static_cast<int32_t>(complete.size());
  // What follows needs these.
  RadixNode* below = nullptr;
  if (!import.pages.empty()) {
    below = memory_.lock_prefix(import.prefix.space, all.first(static_cast<std::size_t>(import.first) * page)).node;
  }
  memory_.unlock_prefix(std::exchange(import.lock, below));
}

}  // namespace millrace
