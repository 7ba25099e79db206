#include "relay/op_table.h"

#include <chrono>

#include "wire/limits.h"

namespace millrace {

std::size_t total_bytes(const PutRequest& request) {
  std::size_t bytes = 0;
  for (const SharedBytes& part : request.parts) bytes += part.size_bytes();
  return bytes;
}

Status check_put(const PutRequest& request, std::size_t max_put_bytes) {
  CHECK(request.done != nullptr);
  if (request.parts.empty()) return invalid_argument("the put has no parts; wanted 1..{}", kMaxRelayParts);
  if (request.parts.size() > kMaxRelayParts) {
    return error(StatusCode::kTooLarge, "the put has {} parts; wanted 1..{}", request.parts.size(), kMaxRelayParts);
  }
  if (request.readers < 1 || request.readers > kMaxRelayReaders) {
    return invalid_argument("the put is for {} readers; wanted 1..{}", request.readers, kMaxRelayReaders);
  }
  if (request.destination.size() > wire::kMaxRelayAddressBytes) {
    return invalid_argument("the put's destination has {} bytes; wanted at most {}", request.destination.size(),
                            wire::kMaxRelayAddressBytes);
  }
  std::size_t bytes = 0;
  for (const SharedBytes& part : request.parts) {
    // Compared by subtraction: bytes never exceeds max_put_bytes, and a sum of hostile sizes could wrap around.
    if (part.size_bytes() > max_put_bytes - bytes) {
      return error(StatusCode::kTooLarge, "the put has more than {} bytes, the most that this relay takes",
                   max_put_bytes);
    }
    bytes += part.size_bytes();
  }
  return ok_status();
}

Status check_get(const GetRequest& request) {
  CHECK(request.done != nullptr);
  if (request.sizes.empty() || request.sizes.size() > kMaxRelayParts) {
    return invalid_argument("the get names {} parts; wanted 1..{}", request.sizes.size(), kMaxRelayParts);
  }
  if (!request.destination.empty()) {
    if (request.destination.size() != request.sizes.size()) {
      return invalid_argument("the get has {} destinations for {} parts", request.destination.size(),
                              request.sizes.size());
    }
    for (std::size_t i = 0; i < request.sizes.size(); ++i) {
      if (request.destination[i].size() != request.sizes[i]) {
        return invalid_argument("the get's destination {} has {} bytes; its part has {}", i,
                                request.destination[i].size(), request.sizes[i]);
      }
    }
  }
  if (request.timeout_ms <= 0) return Status(StatusCode::kDeadline, "the time for the get is over");
  return ok_status();
}

Status check_options(const RelayOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t wanted) {
    return value >= wanted ? ok_status() : invalid_argument("relay option {} is {}; wanted >= {}", name, value, wanted);
  };
  RETURN_IF_ERROR(at_least("pool_bytes", static_cast<int64_t>(options.pool_bytes), 1));
  RETURN_IF_ERROR(at_least("credits", options.credits, 1));
  RETURN_IF_ERROR(at_least("lease_ms", options.lease_ms, 1));
  RETURN_IF_ERROR(at_least("connect_timeout_ms", options.connect_timeout_ms, 1));
  RETURN_IF_ERROR(at_least("silent_ms", options.silent_ms, 1));
  return at_least("streams", options.streams, 0);
}

OpTable::OpTable(const RelayOptions& options, Ended ended) : options_(options), ended_(std::move(ended)) {}

OpTable::~OpTable() { close(); }

// Under the lock. An op is born pinned: a deadline of 1 ms or a cleanup() from another thread must not end it while the
// backend still sets it up. due_ and entries_ always name the same ops; expire() relies on it.
RelayOp OpTable::insert(Entry entry) {
  const RelayOp op{next_op_++};
  entry.pins = 1;
  due_.emplace(entry.due_ms, op.value);
  entries_.emplace(op, std::move(entry));
  return op;
}

Result<RelayOp> OpTable::open_put(PutRequest request, std::size_t bytes, int64_t now_ms) {
  Entry entry;
  entry.put_done = std::move(request.done);
  // `done` stays in the entry alone. The request itself is shared with the backend, which may keep it beyond the end,
  // and must not keep alive what the caller's closure owns.
  request.done = nullptr;
  entry.request = request.request;
  entry.bytes = bytes;
  entry.due_ms = now_ms + options_.lease_ms;
  entry.put = std::make_shared<PutRequest>(std::move(request));
  std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::kUnavailable, "the relay is closed");
  // A put that has ended but is still read occupies memory, and in shm a slot, so it counts like an open one.
  const std::size_t used = static_cast<std::size_t>(puts_) + held_.size();
  if (used >= static_cast<std::size_t>(options_.credits)) {
    return error(StatusCode::kResourceExhausted, "all {} credits of the relay are in use", options_.credits);
  }
  CHECK(held_bytes_ <= options_.pool_bytes);
  if (bytes > options_.pool_bytes - held_bytes_) {
    return error(StatusCode::kResourceExhausted, "the relay's pool has {} of {} bytes left; wanted {}",
                 options_.pool_bytes - held_bytes_, options_.pool_bytes, bytes);
  }
  held_bytes_ += bytes;
  ++puts_;
  return insert(std::move(entry));
}

Result<RelayOp> OpTable::open_get(GetRequest request, int64_t now_ms) {
  Entry entry;
  entry.get_done = std::move(request.done);
  request.done = nullptr;
  entry.request = request.request;
  entry.due_ms = now_ms + request.timeout_ms;
  entry.get = std::make_shared<GetRequest>(std::move(request));
  std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::kUnavailable, "the relay is closed");
  // Gets need no credit: what they receive into is bounded by the backend. The limit bounds the table and its
  // deadlines.
  const std::size_t gets = entries_.size() - static_cast<std::size_t>(puts_);
  if (gets >= kMaxOpenGets) {
    return error(StatusCode::kResourceExhausted, "the relay has {} open gets, the most that it takes", gets);
  }
  return insert(std::move(entry));
}

// From here on the op is found by no other call, so its end happens once. A put moves from entries_ to held_ in the
// same critical section: books() never shows its bytes as free in between, and a reader that releases the put before
// ended() has returned finds it in held_ already.
OpTable::Entry OpTable::take_out(Entries::iterator at) {
  Entry entry = std::move(at->second);
  CHECK(due_.erase({entry.due_ms, at->first.value}) == 1);
  if (entry.put) {
    // Still held until ended() reports that no reader holds it any more.
    CHECK(puts_ > 0 && held_.emplace(at->first, entry.bytes).second);
    --puts_;
  }
  entries_.erase(at);
  return entry;
}

void OpTable::forget(RelayOp op) {
  Entry entry;  // destroyed without the lock
  {
    std::lock_guard lock(mutex_);
    const auto at = entries_.find(op);
    if (at == entries_.end()) return;
    entry = take_out(at);
  }
  // take_out() has moved a put to held_. There is no end to wait for: its set-up failed before a reader knew of it.
  release(op);
  quiet_.notify_all();
}

bool OpTable::pin(RelayOp op) {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(op);
  if (at == entries_.end() || at->second.pending) return false;
  ++at->second.pins;
  return true;
}

void OpTable::unpin(RelayOp op) {
  Entry entry;
  {
    std::lock_guard lock(mutex_);
    const auto at = entries_.find(op);
    // forget() erases a pinned op; the set-up that failed is not unpinned, but a pin() of another thread may be.
    if (at == entries_.end()) return;  // forgotten
    CHECK(at->second.pins > 0);
    if (--at->second.pins > 0 || !at->second.pending) return;
    entry = take_out(at);
    ++callbacks_;
  }
  End end = std::move(*entry.pending);
  deliver(op, std::move(entry), std::move(end));
}

std::shared_ptr<const PutRequest> OpTable::put(RelayOp op) const {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(op);
  return at == entries_.end() ? nullptr : at->second.put;
}

std::shared_ptr<const GetRequest> OpTable::get(RelayOp op) const {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(op);
  return at == entries_.end() ? nullptr : at->second.get;
}

bool OpTable::finish(RelayOp op, End end) {
  Entry entry;
  {
    std::lock_guard lock(mutex_);
    const auto at = entries_.find(op);
    // The first end wins also where it waits for unpin(): later ones are dropped here.
    if (at == entries_.end() || at->second.pending) return false;
    if (at->second.pins > 0) {
      at->second.pending = std::move(end);
      return true;
    }
    entry = take_out(at);
    // In the same critical section as take_out(): close() must see the op either in entries_ or as a callback that
    // runs.
    ++callbacks_;
  }
  deliver(op, std::move(entry), std::move(end));
  return true;
}

void OpTable::deliver(RelayOp op, Entry entry, End end) {
  const bool is_put = entry.put != nullptr;
  const bool free = ended_ == nullptr || ended_(op, is_put, end.status);
  if (is_put) {
    // Before `done`: the caller may call put() from it and counts on this credit.
    if (free) release(op);
    entry.put.reset();  // the parts go before the caller's `done`
    entry.put_done(end.status);
  } else if (end.status.ok()) {
    CHECK(end.parts.size() == entry.get->sizes.size());
    entry.get_done(std::move(end.parts));
  } else {
    entry.get_done(std::move(end.status));
  }
  entry = Entry{};  // what the callbacks hold goes before close() returns
  std::lock_guard lock(mutex_);
  CHECK(callbacks_ > 0);
  --callbacks_;
  quiet_.notify_all();
}

bool OpTable::end_put(RelayOp op, Status status) { return finish(op, End{std::move(status), {}}); }

bool OpTable::end_get(RelayOp op, Result<std::vector<SharedBytes>> result) {
  if (!result.ok()) return finish(op, End{result.status(), {}});
  return finish(op, End{ok_status(), std::move(result).value()});
}

bool OpTable::end(RelayOp op, Status error) {
  CHECK(!error.ok());
  return finish(op, End{std::move(error), {}});
}

void OpTable::cancel(RelayOp op) { (void)end(op, Status(StatusCode::kCancelled, "cancelled")); }

void OpTable::cleanup(ReqId request) {
  std::vector<RelayOp> ops;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [op, entry] : entries_) {
      if (entry.request == request) ops.push_back(op);
    }
  }
  for (const RelayOp op : ops) cancel(op);
}

int64_t OpTable::expire(int64_t now_ms) {
  // Collected under the lock and ended without it, as end() calls ended() and done(). What ends by another way in
  // between is left alone by end().
  std::vector<std::pair<RelayOp, bool>> over;
  int64_t next = -1;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [due_ms, op] : due_) {
      const Entry& entry = entries_.at(RelayOp{op});
      // It has its end already and leaves due_ with unpin(); it must not make the loop spin on a time that is past.
      if (entry.pending) continue;
      if (due_ms > now_ms) {
        next = due_ms - now_ms;
        break;
      }
      over.emplace_back(RelayOp{op}, entry.put != nullptr);
    }
  }
  for (const auto& [op, is_put] : over) {
    (void)end(op, is_put ? error(StatusCode::kDeadline, "no reader released the put within {} ms", options_.lease_ms)
                         : Status(StatusCode::kDeadline, "the get took longer than it was given"));
  }
  return next;
}

void OpTable::release(RelayOp op) {
  std::lock_guard lock(mutex_);
  const auto at = held_.find(op);
  if (at == held_.end()) return;
  CHECK(held_bytes_ >= at->second);
  held_bytes_ -= at->second;
  held_.erase(at);
}

std::vector<SharedBytes> OpTable::lend(std::vector<SharedBytes> parts, std::function<void()> on_release) {
  struct Loan {
    std::shared_ptr<std::atomic<int64_t>> lent;
    int64_t count;
    std::vector<std::shared_ptr<const void>> owners;
    std::function<void()> on_release;
    ~Loan() {
      // First the memory, then the count: when books() shows no lent part, the received bytes are freed.
      owners.clear();
      lent->fetch_sub(count);
      if (on_release) on_release();
    }
  };
  // All parts of a get share one Loan. Its destructor runs when the last part is dropped, on that thread, and may run
  // when the table is gone: therefore it owns the counter jointly and names no member of the table.
  auto loan = std::make_shared<Loan>();
  loan->lent = lent_;
  loan->count = static_cast<int64_t>(parts.size());
  loan->on_release = std::move(on_release);
  lent_->fetch_add(loan->count);
  for (SharedBytes& part : parts) {
    // Parts that were received into one block have one owner: it is kept once.
    if (loan->owners.empty() || loan->owners.back() != part.owner()) loan->owners.push_back(part.owner());
    part = SharedBytes(loan, part.data(), part.size_bytes(), part.device());
  }
  return parts;
}

RelayBooks OpTable::books() const {
  std::lock_guard lock(mutex_);
  RelayBooks books;
  books.puts = puts_;
  books.gets = static_cast<int64_t>(entries_.size()) - puts_;
  books.held_bytes = held_bytes_;
  books.lent_parts = lent_->load();
  books.bad_frames = bad_frames_.load(std::memory_order_relaxed);
  return books;
}

bool OpTable::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

void OpTable::close() {
  std::vector<RelayOp> ops;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [op, entry] : entries_) ops.push_back(op);
  }
  // closed_ is set, so no op can join entries_ behind this list.
  for (const RelayOp op : ops) (void)end(op, Status(StatusCode::kCancelled, "the relay was closed"));
  std::unique_lock lock(mutex_);
  // What was pinned has its end pending now, and unpin() delivers it. The wait is bounded because a pin may be held by
  // a transport that hangs. close() from inside `done` would wait for itself: relay.h forbids it.
  quiet_.wait_for(lock, std::chrono::milliseconds(kRelayCloseMs),
                  [this] { return entries_.empty() && callbacks_ == 0; });
}

}  // namespace millrace
