#include "scheduler/page_transfers.h"

#include <utility>

namespace millrace {

Status PageTransfers::supported() const {
  if (model_.kv_page_bytes == 0) {
    return error(StatusCode::kUnsupported, "this runner cannot read and write KV pages (a layer split)");
  }
  if (!memory_.shares_prefixes()) {
    return error(StatusCode::kUnsupported, "the prefix cache is off; transfers of KV pages need it");
  }
  if (memory_.weight_version() == 0) return error(StatusCode::kUnavailable, "the weights are not known yet");
  return ok_status();
}

int32_t PageTransfers::lease(uint64_t number, const TransferPrefix& prefix) {
  const SequenceMemory::LockedPrefix found = memory_.lock_prefix(prefix.space, prefix.tokens);
  const auto pages = static_cast<int32_t>(found.pages.size());
  if (pages == 0 || !memory_.set_lease(number, found.node, pages)) memory_.end_lease(number);
  memory_.unlock_prefix(found.node);
  return pages;
}

Status PageTransfers::check(const TransferPrefix& prefix, int32_t first, int32_t count) const {
  RETURN_IF_ERROR(supported());
  const int64_t tokens = (int64_t{first} + count) * memory_.page_size();
  if (first < 0 || count < 1 || tokens > static_cast<int64_t>(prefix.tokens.size())) {
    return invalid_argument("pages [{}, {}) of {} tokens; wanted pages of {} tokens inside", first,
                            int64_t{first} + count, prefix.tokens.size(), memory_.page_size());
  }
  return ok_status();
}

Status PageTransfers::check_bytes(std::size_t given, int32_t count) const {
  const int64_t wanted = count * model_.kv_page_bytes;
  if (static_cast<int64_t>(given) == wanted) return ok_status();
  return invalid_argument("{} bytes for {} pages; wanted {}", given, count, wanted);
}

// A page that comes back from the host tier is cached from the plan of its copy on, and has its bytes when the batch
// with that copy is settled. The plan's own batch may have been refused: then the next one brings them.
Status PageTransfers::read(const TransferPrefix& prefix, int32_t first, int32_t count, std::span<std::byte> to) {
  RETURN_IF_ERROR(check(prefix, first, count));
  RETURN_IF_ERROR(check_bytes(to.size(), count));
  waits_for_loads_ = waits_for_loads_ || memory_.loads_due();
  if (loading_step_ || waits_for_loads_) {
    return error(StatusCode::kResourceExhausted, "pages are on their way from the host tier; try again later");
  }
  const auto tokens = static_cast<std::size_t>(first + count) * static_cast<std::size_t>(memory_.page_size());
  const SequenceMemory::LockedPrefix found = memory_.lock_prefix(prefix.space, std::span(prefix.tokens).first(tokens));
  memory_.unlock_prefix(found.node);
  if (static_cast<int32_t>(found.pages.size()) < first + count) {
    return error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first + count);
  }
  RETURN_IF_ERROR(runner_.read_pages(std::span(found.pages).subspan(static_cast<std::size_t>(first)), to));
  counters_.exported_tokens += static_cast<uint64_t>(count) * static_cast<uint64_t>(memory_.page_size());
  return ok_status();
}

Status PageTransfers::write(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count,
                            std::vector<SharedBytes> bytes) {
  RETURN_IF_ERROR(check(prefix, first, count));
  if (prefix.space.weight_version != memory_.weight_version()) {
    return error(StatusCode::kConflict, "the weights are of version {} by now; the transfer is of version {}",
                 memory_.weight_version(), prefix.space.weight_version);
  }
  std::size_t given = 0;
  for (const SharedBytes& part : bytes) given += part.size_bytes();
  RETURN_IF_ERROR(check_bytes(given, count));
  if (full()) {
    return error(StatusCode::kResourceExhausted, "{} writes of KV pages wait; the limit is {}", queued_.size(),
                 kMaxQueuedWrites);
  }
  const auto page = static_cast<std::size_t>(memory_.page_size());
  const auto below = static_cast<std::size_t>(first) * page, size = static_cast<std::size_t>(count) * page;
  // The lock comes first: what lies below must not be evicted for the new pages.
  const auto found = memory_.lock_prefix(prefix.space, std::span(prefix.tokens).first(below));
  Write write{.ticket = ticket, .space = prefix.space, .lock = found.node, .bytes = std::move(bytes)};
  Status status;
  if (static_cast<int32_t>(found.pages.size()) < first) {
    status = error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first);
  } else if (!memory_.begin_import(count, write.pages)) {
    status = error(StatusCode::kResourceExhausted, "{} KV pages are available; wanted {}", memory_.available(), count);
  }
  if (!status.ok()) return memory_.unlock_prefix(found.node), status;
  const auto tokens = std::span(prefix.tokens).subspan(below, size);
  write.tokens.assign(tokens.begin(), tokens.end());
  queued_.push_back(std::move(write));
  return ok_status();
}

void PageTransfers::add_to(Batch& batch) {
  int64_t bytes = 0;
  while (!queued_.empty()) {
    bytes += static_cast<int64_t>(queued_.front().pages.size()) * model_.kv_page_bytes;
    if (!adding_.empty() && bytes > kMaxWrittenBytesInBatch) return;
    const Write& write = adding_.emplace_back(std::move(queued_.front()));
    queued_.pop_front();
    batch.writes.push_back({write.pages, write.bytes});
  }
}

void PageTransfers::submitted(uint64_t step, bool loads) {
  if (!adding_.empty()) sent_.push_back({step, std::exchange(adding_, {})});
  if (loads) loading_step_ = step;
  waits_for_loads_ = false;
}

void PageTransfers::refused(const Status& status) {
  waits_for_loads_ = false;
  for (Write& write : std::exchange(adding_, {})) end(write, status);
}

void PageTransfers::settle(const BatchResult& result, bool kv_lost) {
  if (loading_step_ == result.step) loading_step_.reset();
  if (sent_.empty() || sent_.front().step != result.step) return;
  Sent sent = std::move(sent_.front());
  sent_.pop_front();
  Status status = result.status;
  if (status.ok() && kv_lost) status = error(StatusCode::kUnavailable, "the KV was lost");
  for (Write& write : sent.writes) end(write, status);
}

void PageTransfers::forget() {
  for (Write& write : std::exchange(queued_, {})) end(write, error(StatusCode::kUnavailable, "the KV was lost"));
  memory_.revoke_leases();
}

void PageTransfers::end(Write& write, Status status) {
  if (status.ok() && write.space.weight_version != memory_.weight_version()) {
    status = error(StatusCode::kConflict, "the weights were switched meanwhile");
  }
  if (status.ok()) {
    memory_.publish_import(write.space, write.tokens, write.pages, write.lock);
    counters_.imported_tokens += write.tokens.size();
  } else {
    memory_.cancel_import(write.pages);
  }
  memory_.unlock_prefix(write.lock);
  done_.push_back({write.ticket, std::move(status)});
}

}  // namespace millrace
