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
  if (queued_.size() < kMaxQueuedMoves) return ok_status();
  return error(StatusCode::kResourceExhausted, "{} reads and writes of KV pages wait; the limit is {}", queued_.size(),
               kMaxQueuedMoves);
}

Status PageTransfers::read(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count) {
  RETURN_IF_ERROR(check(prefix, first, count));
  const auto tokens =
      std::span(prefix.tokens)
          .first(static_cast<std::size_t>(first + count) * static_cast<std::size_t>(memory_.page_size()));
  SequenceMemory::LockedPrefix found = memory_.lock_prefix(prefix.space, tokens);
  if (static_cast<int32_t>(found.pages.size()) < first + count) {
    memory_.unlock_prefix(found.node);
    return error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first + count);
  }
  found.pages.erase(found.pages.begin(), found.pages.begin() + first);
  queued_.push_back({.ticket = ticket, .pages = std::move(found.pages), .lock = found.node});
  return ok_status();
}

Status PageTransfers::write(uint64_t ticket, const TransferPrefix& prefix, int32_t first, int32_t count,
                            std::shared_ptr<const std::string> bytes) {
  RETURN_IF_ERROR(check(prefix, first, count));
  if (prefix.space.weight_version != memory_.weight_version()) {
    return error(StatusCode::kConflict, "the weights are of version {} by now; the transfer is of version {}",
                 memory_.weight_version(), prefix.space.weight_version);
  }
  const auto given = static_cast<int64_t>(bytes == nullptr ? 0 : bytes->size());
  if (given != count * model_.kv_page_bytes) {
    return invalid_argument("{} bytes for {} pages; wanted {}", given, count, count * model_.kv_page_bytes);
  }
  const auto page = static_cast<std::size_t>(memory_.page_size());
  const auto below = static_cast<std::size_t>(first) * page, size = static_cast<std::size_t>(count) * page;
  // The lock comes first: what lies below must not be evicted for the new pages.
  const auto found = memory_.lock_prefix(prefix.space, std::span(prefix.tokens).first(below));
  Move move{.ticket = ticket, .writes = true, .space = prefix.space, .lock = found.node, .bytes = std::move(bytes)};
  Status status;
  if (static_cast<int32_t>(found.pages.size()) < first) {
    status = error(StatusCode::kUnavailable, "{} pages are cached; wanted {}", found.pages.size(), first);
  } else if (!memory_.begin_import(count, move.pages)) {
    status = error(StatusCode::kResourceExhausted, "{} KV pages are available; wanted {}", memory_.available(), count);
  }
  if (!status.ok()) return memory_.unlock_prefix(found.node), status;
  const auto tokens = std::span(prefix.tokens).subspan(below, size);
  move.tokens.assign(tokens.begin(), tokens.end());
  queued_.push_back(std::move(move));
  return ok_status();
}

void PageTransfers::add_to(Batch& batch) {
  int64_t bytes = 0;
  while (!queued_.empty()) {
    bytes += static_cast<int64_t>(queued_.front().pages.size()) * model_.kv_page_bytes;
    if (!adding_.empty() && bytes > kMaxMovedBytesInBatch) return;
    Move& move = adding_.emplace_back(std::move(queued_.front()));
    queued_.pop_front();
    if (move.writes) {
      batch.writes.push_back({move.pages, move.bytes});
    } else {
      batch.reads.push_back({move.pages});
    }
  }
}

void PageTransfers::submitted(uint64_t step) {
  if (!adding_.empty()) sent_.push_back({step, std::exchange(adding_, {})});
}

void PageTransfers::refused(const Status& status) {
  for (Move& move : std::exchange(adding_, {})) end(move, status);
}

void PageTransfers::settle(BatchResult& result, bool kv_lost) {
  if (sent_.empty() || sent_.front().step != result.step) return;
  Sent sent = std::move(sent_.front());
  sent_.pop_front();
  Status status = result.status;
  if (status.ok() && kv_lost) status = error(StatusCode::kUnavailable, "the KV was lost");
  std::size_t next = 0;
  for (Move& move : sent.moves) {
    std::string bytes;
    if (status.ok() && !move.writes) {
      if (next == result.page_bytes.size()) {
        status = internal_error("the runner returned the bytes of {} reads; wanted more", next);
      } else {
        bytes = std::move(result.page_bytes[next++]);
      }
    }
    end(move, status, std::move(bytes));
  }
}

void PageTransfers::forget() {
  for (Move& move : std::exchange(queued_, {})) end(move, error(StatusCode::kUnavailable, "the KV was lost"));
  memory_.revoke_leases();
}

void PageTransfers::end(Move& move, Status status, std::string bytes) {
  const auto tokens = move.pages.size() * static_cast<std::size_t>(memory_.page_size());
  if (move.writes) {
    if (status.ok() && move.space.weight_version != memory_.weight_version()) {
      status = error(StatusCode::kConflict, "the weights were switched meanwhile");
    }
    if (status.ok()) {
      memory_.publish_import(move.space, move.tokens, move.pages, move.lock);
      counters_.imported_tokens += tokens;
    } else {
      memory_.cancel_import(move.pages);
    }
  } else if (status.ok()) {
    counters_.exported_tokens += tokens;
  }
  memory_.unlock_prefix(move.lock);
  done_.push_back({move.ticket, std::move(status), std::move(bytes)});
}

}  // namespace millrace
