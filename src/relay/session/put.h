// Put: what the writer keeps of an open put, and Hold: that its bytes are still being read.
//
// The op table owns the put; the record here lives as long as it is open or held. A good end waits for the holds, which
// go in a moment: a reader may have all bytes before the channel knows that they were sent, and the owner may use the
// credit from the end on. Another end does not wait: credit and bytes come back when the last one is gone.
//
// Owner: Writer. Thread safety: the first group is constant once the descriptor is out; `holds` to `ended` are under
// the writer's mutex; the rest belongs to the loop's thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "relay/relay.h"
#include "relay/session/layout.h"
#include "relay/session/part_map.h"

namespace millrace::session {

struct Put;

class HoldOwner {
 public:
  virtual void release(const std::shared_ptr<Put>& put) = 0;

 protected:
  ~HoldOwner() = default;
};

// Move-only. Thread safety: destroyed on any thread, also when the put has ended.
class Hold {
 public:
  Hold() = default;
  Hold(HoldOwner* owner, std::shared_ptr<Put> put) : owner_(owner), put_(std::move(put)) {}
  Hold(Hold&& other) noexcept : owner_(other.owner_), put_(std::move(other.put_)) {}
  Hold& operator=(Hold&& other) noexcept {
    if (this != &other) {
      release();
      owner_ = other.owner_;
      put_ = std::move(other.put_);
    }
    return *this;
  }
  ~Hold() { release(); }
  void release() {
    // Emptied first: releasing may run code that looks at this hold.
    const std::shared_ptr<Put> put = std::exchange(put_, nullptr);
    if (put != nullptr) owner_->release(put);
  }
  explicit operator bool() const { return put_ != nullptr; }
  Put* operator->() const { return put_.get(); }
  Put& operator*() const { return *put_; }

 private:
  HoldOwner* owner_ = nullptr;
  std::shared_ptr<Put> put_;
};

using ReaderKey = std::pair<uint64_t, uint64_t>;  // the reader's instance, the ticket of its get

struct Put {
  RelayOp op;
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  Layout layout;
  PartMap map;  // where the run's bytes lie
  std::shared_ptr<const PutRequest> request;
  std::shared_ptr<void> stored;  // the channel's: what it copied; freed with the last hold

  int holds = 0;
  bool complete_for_all = false;  // it ends with the last hold
  bool ended = false;

  struct Reading {
    int links = 0;            // that it asked on
    int64_t lost_since = -1;  // when the last of them broke
    Hold granted;             // while it may fetch the bytes itself
  };
  std::map<ReaderKey, Reading> reading;
  std::set<ReaderKey> over;  // gets that released the put
  int complete = 0;          // of these, with all bytes
  Status worst;
};

}  // namespace millrace::session
