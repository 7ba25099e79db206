// Reader: the gets of a relay. For each writer it has one link or a few; a get asks on them for ranges of the put, and
// what arrives goes straight into its memory.
//
//   waiting (for memory, then for a link) -> fetching -> all bytes: RELEASE, done
//
// A link that breaks gives its ranges back; what arrived of them in whole, checked frames is kept. How many breaks a
// get survives is the channel's trait. A frame with a wrong checksum ends its get with kInternal. A writer that is
// silent, cannot be reached or is another instance ends all its gets with kUnavailable. The memory of all gets that
// brought none is limited to pool_bytes together; a get that does not fit waits its turn.
//
// A get whose end arrives while the channel still fetches for it stays here, without a caller, until fetched() reports
// that nothing more is written; only then the writer gets the RELEASE, because it may use the bytes' memory again.
//
// Owner: Core. Thread safety: the loop's thread alone.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "relay/session/channel.h"
#include "relay/session/gaps.h"
#include "relay/session/receive_pool.h"

namespace millrace::session {

inline constexpr int kReconnectPauseMs = 50;  // before the one retry of a get whose link broke
inline constexpr int kRepeatMs = 100;         // of a REQUEST or RELEASE that may have been lost, at most

// What get() found out before it handed the get over.
struct GetTask {
  RelayOp op;  // of the get: its ticket
  Target writer;
  uint64_t put = 0;  // the op of the put
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  uint64_t total = 0;
};

class Reader : public LinkUser {
 public:
  explicit Reader(Core& core);

  void start(const GetTask& task);
  void get_ended(RelayOp op, StatusCode code);
  void flush();
  int64_t check_time(int64_t now_ms);
  // After Channel::shut_down() and its answer.
  void clear(bool clean);
  bool has_startable() const { return startable_; }  // flush() has something to start
  bool idle() const { return gets_.empty() && unanswered_.empty(); }

  Status on_frame(Link& link, const Header& header, std::span<const std::byte> payload) override;
  void on_ready(Link& link) override;
  bool busy(const Link& link) const override;
  void on_lost(Link& link, const Status& why) override;
  Status data_begin(Link& link, const Header& header) override;
  std::size_t data_space(Link& link, std::span<iovec> out) override;
  void data_received(Link& link, std::size_t bytes) override;
  Status data_end(Link& link, uint64_t sum) override;

  // A DATA frame of a message transport: takes its range out of what is missing and returns where it goes; nullopt:
  // its get is over. Each Fetch ends with one fetched().
  Result<std::optional<Fetch>> begin_fetch(Link& link, const Header& header);
  // `unproved`: the bytes may have been read later than the writer thinks, without a checksum.
  void fetched(const Fetch& fetch, const Status& status, bool unproved = false);

 private:
  struct Range {
    uint64_t offset = 0;
    uint64_t end = 0;  // offset: the one range of a put without bytes
  };
  struct Remote;
  struct Get {
    GetTask task;
    Remote* remote = nullptr;
    Layout layout;
    Landing landing;
    uint64_t next = 0;         // asked for so far
    std::vector<Range> again;  // of links that broke: to be requested again
    uint64_t received = 0;
    int breaks = 0;
    uint64_t counted_route = 0;      // links with routes below it were open at the last break that was counted
    int fetching = 0;                // that the channel works on
    bool by_frames = false;          // a GRANT was of no use
    bool unproved = false;           // see fetched()
    bool proving = false;            // RELEASE is sent, and the writer's answer is awaited
    std::optional<StatusCode> over;  // it has ended, and the channel still fetches
  };
  struct Remote {  // a writer
    std::string key;
    Target target;
    std::vector<Link*> links;
    std::map<uint64_t, Get*> gets;  // by ticket
    int64_t retry_ms = 0;           // not 0: when to connect again
  };
  struct Flight {  // one range that was asked for on a link
    uint64_t ticket = 0;
    Range range;
    Gaps gaps;
    int64_t asked_ms = 0;
    bool answered = false;
  };
  struct Route {      // of one link
    uint64_t id = 0;  // none is used twice, as a link's address may be
    Remote* remote = nullptr;
    std::vector<Flight> flights;
    int expected = 0;      // fetches and answers to RELEASE
    Header frame;          // the DATA frame that arrives
    uint64_t have = 0;     // of it
    bool discard = false;  // its get is over
    bool pinned = false;
    std::unique_ptr<Hasher> hasher = std::make_unique<Hasher>();
  };
  struct Unanswered {  // a RELEASE, where they are repeated
    Link* link = nullptr;
    Header header;
    int64_t sent_ms = 0;
  };

  bool prepare(Get& get);
  Result<Landing> land(const GetRequest& request, const Layout& layout);
  void start_waiting();
  Remote& remote_of(const Target& target);
  void ensure_links(Remote& remote, std::size_t wanted);
  Status connect(Remote& remote);
  void assign(Remote& remote);
  bool assign_one(Get& get);
  std::optional<Range> next_range(Get& get);
  Status ask(Link& link, Get& get, const Range& range);
  Status send_request(Link& link, const Get& get, const Range& range);
  Status on_refuse(Link& link, const Header& header, std::span<const std::byte> payload);
  Status on_grant(Link& link, const Header& header, std::span<const std::byte> payload);
  void on_released(Link& link, const Header& header);
  Flight* flight_of(Route& route, const Header& header);
  Fetch start_fetch(Link& link, Get& get, uint64_t offset, uint64_t size);
  Status broken(Get& get, const Status& why);
  void check_complete(Get& get, bool empty);
  void complete(Get& get);
  void drop(uint64_t ticket, StatusCode code);
  void finish_drop(Get& get, StatusCode code);
  void send_release(const Get& get, StatusCode code, bool answer);
  void fail_remote(Remote& remote, const Status& why);
  void retry_or_fail(const Route& route, const std::vector<uint64_t>& tickets, const Status& why);
  void repeat(int64_t now_ms, int64_t& due_ms);
  void tidy(Remote& remote);
  Get* find(uint64_t ticket);  // an open one

  Core& core_;
  ReceivePool pool_;
  std::size_t memory_ = 0;  // of open gets
  std::unordered_map<uint64_t, std::unique_ptr<Get>> gets_;
  std::deque<uint64_t> waiting_;  // tickets
  std::map<std::string, std::unique_ptr<Remote>> remotes_;
  std::unordered_map<Link*, Route> routes_;
  std::map<uint64_t, Unanswered> unanswered_;  // by ticket
  uint64_t next_route_ = 1;
  bool startable_ = false;  // a get may go on, as something is over or new
  std::vector<std::byte> scratch_;
};

}  // namespace millrace::session
