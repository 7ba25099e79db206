#include "relay/session/core.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace millrace::session {
namespace {

constexpr int64_t kSweepMs = 10;  // what is due after something happened is looked at so much later, at the latest
constexpr int64_t kFarewellNapUs = 1'000;

}  // namespace

uint64_t key_of(const InstanceId& instance) {
  // Half of the random number is enough to distinguish the instances behind one address; the lowest bit keeps it from
  // 0, which stands for "not known".
  return load_u64(reinterpret_cast<const std::byte*>(instance.random.data())) | 1;
}

void copy_block(OpTable& table, const Fetch& fetch, const std::byte* block) {
  // Memory of the relay's own needs no pin: the get, and with it the landing, stays until fetched().
  CHECK(fetch.landing->parts.size() == fetch.layout->parts());
  if (fetch.landing->direct && !table.pin(fetch.get)) return;
  for (std::size_t i = 0; i < fetch.layout->parts(); ++i) {
    const SharedBytes& part = fetch.landing->parts[i];
    if (!part.empty()) {
      std::memcpy(const_cast<std::byte*>(part.data()), block + fetch.layout->block_offset(i), part.size_bytes());
    }
  }
  if (fetch.landing->direct) table.unpin(fetch.get);
}

Status Channel::check_put(const PutRequest& request) const {
  for (const SharedBytes& part : request.parts) {
    if (part.device() != Device::kHost) {
      return error(StatusCode::kUnsupported, "a part is in device memory; the {} relay moves host memory",
                   capabilities().name);
    }
  }
  return ok_status();
}

Core::Core(const RelayOptions& given)
    : options(given),
      table(given, [this](RelayOp op, bool is_put, const Status& status) { return ended(op, is_put, status); }),
      writer(*this),
      reader(*this) {}

// Before the members go, as ended() calls the writer and posts to the loop.
Core::~Core() { table.close(); }

bool Core::ended(RelayOp op, bool is_put, const Status& status) {
  // On any thread. The writer has a mutex for it; the state of a get is the loop's alone.
  if (is_put) return writer.ended(op, status);
  if (!status.ok()) {
    loop.post([this, op, code = status.code()] { reader.get_ended(op, code); });
  }
  return true;
}

void Core::stop() {
  stopping_.store(true);
  // Only to wake it: running() is asked before each turn.
  loop.post([] {});
}

// After stop() the loop goes on until the ends that close() made have been sent to the peers and no transfer is under
// way.
bool Core::running() {
  if (!stopping_.load(std::memory_order_relaxed)) return true;
  const int64_t now_ms = monotonic_ms();
  if (farewell_until_ms_ == 0) farewell_until_ms_ = now_ms + channel->traits().farewell_ms;
  const RelayBooks books = table.books();
  return now_ms < farewell_until_ms_ && (books.puts > 0 || books.gets > 0 || !reader.idle());
}

bool Core::run() {
  loop.run(*this);
  const bool clean = channel->shut_down();
  // Behind the channel: from here on nothing of the transport calls them, and they forget their links, which are gone.
  reader.clear(clean);
  writer.clear();
  return clean;
}

int64_t Core::nap_us() const {
  const int64_t nap_us = channel->nap_us();
  if (!stopping_.load(std::memory_order_relaxed)) return nap_us;
  return nap_us < 0 ? kFarewellNapUs : std::min(nap_us, kFarewellNapUs);
}

int64_t Core::turn_end(int64_t now_ms) {
  // Pings are due more often than this while anything is expected of a peer. A loop that had nothing to do so long is
  // not late: an idle connection whose silence was counted anew by each turn would never end.
  const bool gap = now_ms - std::exchange(turn_ms_, now_ms) > options.silent_ms / 2;
  if (gap && now_ms > due_ms_ && now_ms - due_ms_ > options.silent_ms / 4) channel->compensate_pause(now_ms);
  due_ms_ = std::min(due_ms_, now_ms + kSweepMs);  // something happened, or it is time
  if (now_ms >= swept_ms_ + kSweepMs) {
    swept_ms_ = now_ms;
    const int64_t next = channel->traits().separate_deadlines ? -1 : table.expire(now_ms);
    due_ms_ = std::min({channel->check_time(now_ms), writer.check_time(now_ms), reader.check_time(now_ms)});
    if (next >= 0) due_ms_ = std::min(due_ms_, now_ms + std::max<int64_t>(next, 1));
  }
  // A get that starts queues frames, and a flush that fails gives ranges back to be asked for anew: until neither does.
  do {
    reader.flush();
    channel->flush();
  } while (reader.has_startable());
  return due_ms_;
}

}  // namespace millrace::session
