// Link: one pair of relays in one direction, and the thread that does all of it: the control connection, the
// communicator, and the transfers, one get after the other. The reader's end opens it, the writer's end accepts it.
//
// When the thread is told to stop, loses its peer, or waits too long for the device, it aborts the communicator and
// ends. No other thread ever calls the device.
//
// Thread safety: start(), stop(), push(), dead(), finished(), finish() from any thread. Owner: the relay; the thread
// holds the link and the core as well.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "relay/nccl/channel.h"
#include "relay/nccl/control.h"
#include "relay/nccl/core.h"

namespace millrace::nccl {

inline constexpr int kJoinMs = 30'000;   // for both sides to make the communicator
inline constexpr int kPieceMs = 10'000;  // for one piece to travel

class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(std::shared_ptr<Core> core, int fd) : core_(std::move(core)), control_(fd, core_->options.silent_ms) {}
  virtual ~Link() = default;
  void start();
  void stop() { control_.stop(); }
  bool dead() const { return dead_.load(); }          // takes no more work
  bool finished() const { return finished_.load(); }  // its thread is at its end
  void finish();                                      // joins a finished thread, leaves another behind

 protected:
  virtual Status run() = 0;
  virtual void lost(const Status& why) = 0;  // the communicator is gone already
  Status join(const UniqueId& id, int rank);
  // Waits until what the channel began is over.
  Status settle(int64_t limit_ms);

  const std::shared_ptr<Core> core_;
  Control control_;
  std::unique_ptr<Channel> channel_;
  session::Transcript transcript_;
  std::atomic<bool> dead_{false};

 private:
  void thread_main();

  std::atomic<bool> finished_{false};
  std::thread thread_;
};

// The writer's end.
class WriterLink : public Link {
 public:
  using Link::Link;

 private:
  struct Claim {
    RelayOp put;
    std::shared_ptr<const Layout> layout;
    std::size_t next = 0;  // the offset of the piece that must come now
  };
  Status run() override;
  void lost(const Status& why) override;
  Status serve_all();
  Status handshake();
  Status refuse(uint64_t ticket, const Status& why);
  Status on_ask(const Frame& frame);
  Status on_more(const Frame& frame);
  Status send_piece(const Frame& frame, Claim& claim);

  std::unordered_map<uint64_t, Claim> claims_;  // by ticket
};

// The reader's end.
class ReaderLink : public Link {
 public:
  struct Order {
    RelayOp get;
    PutName put;
  };
  ReaderLink(std::shared_ptr<Core> core, int fd, uint64_t writer) : Link(std::move(core), fd), writer_(writer) {}
  // False: it is dead.
  bool push(const Order& order);

 private:
  struct Landing;
  Status run() override;
  void lost(const Status& why) override;
  Status handshake();
  // Errors are of the link, not of the get.
  Status serve(const Order& order);
  Status transfer(const Order& order, const GetRequest& request, const Layout& layout);
  Status unpack(const Order& order, const Landing& landing, const std::vector<Layout::Slice>& slices, bool& over);
  Status release(const Order& order, StatusCode code);
  Result<Frame> answer(uint64_t ticket);

  const uint64_t writer_;
  std::mutex mutex_;
  std::deque<Order> orders_;  // the first is the one that is being served
};

}  // namespace millrace::nccl
