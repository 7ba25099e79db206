// Channel: what a reader has of one writer: its pool and state table mapped for reading, the hold table between the
// two, and the socket that shows the writer that the reader is alive.
//
// It lives as long as a user holds bytes that came through it, also beyond its relay's close() and its writer's death;
// its end closes the socket, and with it releases what is still held.
//
// Owner: shared by the Fetcher and the bytes that came through it. Thread safety: claim(), parts(), offered(),
// release() from any thread. Nothing blocks.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "relay/descriptor.h"
#include "relay/shm/layout.h"
#include "relay/shm/shared_memory.h"
#include "tensor/shared_bytes.h"

namespace millrace::shm {

// The tail of our descriptors.
struct Tail {
  uint32_t slot = 0;
  uint64_t key = 0;
};
std::string encode_tail(const Tail& tail);
Result<Tail> decode_tail(std::string_view bytes);

// What stands for a reader in SlotRecord::destination; never 0.
uint64_t destination_hash(const InstanceId& id);

// The reader's half of the hazard pointer (layout.h): one more get holds this generation. `offered`: an error where the
// slot does not offer it any more; asked before the word is written, and the caller asks once more behind that.
Result<Hold> take_hold(std::atomic<uint64_t>& word, uint32_t generation, const std::function<Status()>& offered);

class Channel {
 public:
  struct Claim {
    uint32_t slot = 0;
    uint32_t generation = 0;
    std::size_t offset = 0;  // of the first part, in the pool
  };

  // Maps what the writer sent: pool, state table, hold table, bell. kInvalidArgument: it is not what `welcome`
  // describes.
  static Result<std::shared_ptr<Channel>> make(Fd socket, const Welcome& welcome, std::vector<Fd> fds);

  // Takes the put for one get. kInvalidArgument: it is over, was never, or is not for reader `self` with these sizes;
  // kUnavailable: the writer has closed. Each success is followed by one of the two releases below.
  Result<Claim> claim(const Descriptor& descriptor, std::span<const std::size_t> sizes, uint64_t self);
  // The bytes, without an owner.
  std::vector<SharedBytes> parts(const Claim& claim, std::span<const std::size_t> sizes) const;
  // The put has not ended since.
  bool offered(const Claim& claim) const;
  // This get is over, and counts as one of the put's readers. False, and nothing is changed, where it does not hold it.
  bool release(const Claim& claim) { return drop(claim, 1); }
  // It was no get: another one may come.
  bool give_up(const Claim& claim) { return drop(claim, 0); }

  int fd() const { return socket_.get(); }

 private:
  Channel() = default;
  const StateHeader& header() const { return *reinterpret_cast<const StateHeader*>(state_.data()); }
  const SlotRecord& record(uint32_t slot) const {
    return reinterpret_cast<const SlotRecord*>(state_.data() + sizeof(StateHeader))[slot];
  }
  std::atomic<uint64_t>& hold(uint32_t slot) const {
    return reinterpret_cast<std::atomic<uint64_t>*>(holds_.data())[slot];
  }
  // The offset of the first part, where the slot holds what the descriptor names and `mine` may get it.
  Result<std::size_t> check_record(const Tail& tail, const Descriptor& descriptor, std::span<const std::size_t> sizes,
                                   uint64_t self, Hold mine) const;
  bool drop(const Claim& claim, uint16_t counted);
  Status over() const;

  uint32_t slots_ = 0;
  Fd bell_;
  Mapping pool_;
  Mapping state_;
  Mapping holds_;
  Fd socket_;  // the last member, so the first to go: then the writer must not count on our holds any more
};

}  // namespace millrace::shm
