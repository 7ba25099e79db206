#include "relay/tcp/reader_side.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/log.h"

namespace millrace::tcp {
namespace {

constexpr int kMaxBreaks = 1;  // of connections, that one get survives
constexpr std::size_t kScratchBytes = 64u << 10;

std::size_t aligned(std::size_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

}  // namespace

ReaderSide::ReaderSide(IoLoop& loop, OpTable& table, const RelayOptions& options)
    : table_(table),
      options_(options),
      pool_(options.pool_bytes / 2),
      scratch_(kScratchBytes),
      connections_(loop, *this, {options.connect_timeout_ms, options.silent_ms, true},
                   [&table] { table.count_bad_frame(); }) {}

ReaderSide::~ReaderSide() { clear(); }

void ReaderSide::clear() {
  connections_.clear();
  fetching_.clear();
  waiting_.clear();
  gets_.clear();
  peers_.clear();
  memory_ = 0;
}

ReaderSide::Get* ReaderSide::find(uint64_t ticket) {
  const auto at = gets_.find(ticket);
  return at == gets_.end() ? nullptr : at->second.get();
}

// ---- begin ----------------------------------------------------------------------------------------------------------

void ReaderSide::start(const GetOrder& order) {
  auto get = std::make_unique<Get>();
  get->order = order;
  gets_.emplace(order.op.value, std::move(get));
  waiting_.push_back(order.op.value);
  room_ = true;  // flush() starts it
}

// In the order in which they came, as long as there is memory.
void ReaderSide::start_waiting() {
  while (!waiting_.empty()) {
    const uint64_t ticket = waiting_.front();
    if (Get* waiting = find(ticket); waiting != nullptr && !prepare(*waiting)) return;
    waiting_.pop_front();
    Get* get = find(ticket);
    if (get == nullptr) continue;  // it is over already
    Peer& peer = peer_of(get->order.writer);
    get->peer = &peer;
    peer.gets.emplace(get->order.op.value, get);
    const int chosen = peer.address.socket.loopback() ? 1 : kStreamsToAnotherHost;
    const int streams = options_.streams > 0 ? options_.streams : chosen;
    ensure_connections(peer, get->order.total > kRangeBytes ? static_cast<std::size_t>(streams) : 1);
  }
}

// False: not yet. Else it has its memory, or it is over and forgotten.
bool ReaderSide::prepare(Get& get) {
  const std::shared_ptr<const GetRequest> request = table_.get(get.order.op);
  if (request == nullptr) {
    gets_.erase(get.order.op.value);
    return true;
  }
  if (!request->destination.empty()) {
    for (const std::span<std::byte> part : request->destination) {
      get.into.add(part.data(), part.size());
      get.parts.emplace_back(nullptr, part.data(), part.size());
    }
    return true;
  }
  std::size_t bytes = 0;
  for (const std::size_t size : request->sizes) bytes += aligned(size);
  if (memory_ > 0 && bytes > options_.pool_bytes - std::min(memory_, options_.pool_bytes)) return false;
  const ReceivePool::Block block = pool_.take(bytes);
  if (block.data == nullptr) {
    table_.end_get(get.order.op, error(StatusCode::kTooLarge, "there is no memory for {} bytes", bytes));
    gets_.erase(get.order.op.value);
    return true;
  }
  get.memory = bytes;
  memory_ += bytes;
  std::byte* at = block.data;
  for (const std::size_t size : request->sizes) {
    get.into.add(at, size);
    get.parts.emplace_back(block.owner, at, size);
    at += aligned(size);
  }
  return true;
}

ReaderSide::Peer& ReaderSide::peer_of(const InstanceAddress& address) {
  const std::string key = format_instance(address.socket, address.instance);
  std::unique_ptr<Peer>& peer = peers_[key];
  if (peer == nullptr) {
    peer = std::make_unique<Peer>();
    peer->key = key;
    peer->address = address;
  }
  return *peer;
}

void ReaderSide::ensure_connections(Peer& peer, std::size_t wanted) {
  while (peer.connections.size() < wanted && peer.retry_ms == 0) {
    const Status status = connect(peer);
    if (status.ok()) continue;
    if (peer.connections.empty()) fail_peer(peer, status);
    return;
  }
  assign(peer);
}

Status ReaderSide::connect(Peer& peer) {
  if (connections_.size() >= kMaxOutbound) {
    return error(StatusCode::kUnavailable, "{} connections are open, the most that there may be", kMaxOutbound);
  }
  ASSIGN_OR_RETURN(const int fd, start_connect(peer.address.socket));
  Result<Connection*> c = connections_.adopt(fd, Phase::kConnecting);
  if (!c.ok()) {
    close(fd);
    return c.status();
  }
  (*c)->peer().instance = peer.address.instance;
  fetching_[(*c)->id()].peer = &peer;
  peer.connections.push_back((*c)->id());
  return ok_status();
}

Status ReaderSide::on_connected(Connection& c) {
  c.set_phase(Phase::kHandshake, relay_now_ms());
  return say_hello(c, self_);
}

// ---- asking ---------------------------------------------------------------------------------------------------------

// Gives the peer's connections work, the idlest first, to each get in turn.
void ReaderSide::assign(Peer& peer) {
  bool any = true;
  while (any) {
    any = false;
    for (auto& [ticket, get] : peer.gets) any = assign_one(*get) || any;
  }
}

std::optional<ReaderSide::Range> ReaderSide::next_range(Get& get) {
  if (!get.again.empty()) {
    const Range range = get.again.back();
    get.again.pop_back();
    return range;
  }
  const uint64_t total = get.order.total;
  if (get.next == UINT64_MAX || (total > 0 && get.next >= total)) return std::nullopt;
  if (total == 0) {
    get.next = UINT64_MAX;
    return Range{0, 0, true};
  }
  const Range range{get.next, std::min<uint64_t>(get.next + kRangeBytes, total), false};
  get.next = range.end;
  return range;
}

bool ReaderSide::assign_one(Get& get) {
  if (get.again.empty() && get.next > 0 && get.next >= get.order.total) return false;  // all is asked for
  Connection* best = nullptr;
  std::size_t least = kMaxRangesPerConnection;
  for (const uint64_t id : get.peer->connections) {
    Connection* c = connections_.find(id);
    if (c == nullptr || c->phase() != Phase::kReady) continue;
    const std::vector<Flight>& flights = fetching_.at(id).flights;
    if (flights.size() >= least) continue;
    const auto own =
        std::count_if(flights.begin(), flights.end(), [&](const Flight& f) { return f.ticket == get.order.op.value; });
    if (own >= kRangesInFlight) continue;
    best = c;
    least = flights.size();
  }
  if (best == nullptr) return false;
  const std::optional<Range> range = next_range(get);
  if (!range) return false;
  // A queue that is full belongs to a dead writer; time ends it.
  const Status sent = ask(*best, fetching_.at(best->id()), get, *range);
  if (sent.ok()) return true;
  get.again.push_back(*range);
  return false;
}

Status ReaderSide::ask(Connection& c, Fetching& fetching, Get& get, const Range& range) {
  Header header;
  header.type = FrameType::kRequest;
  header.flags = options_.checksum ? kFlagChecksum : 0;
  header.length = kRequestBytes;
  header.op = get.order.put;
  header.generation = get.order.generation;
  header.ticket = get.order.op.value;
  header.offset = range.offset;
  header.extra = range.end - range.offset;
  c.begin_use(relay_now_ms());
  RETURN_IF_ERROR(c.send(header, encode(RequestBody{get.order.total, get.order.sizes_hash})));
  fetching.flights.push_back({get.order.op.value, range});
  connections_.touch(c);
  return ok_status();
}

// ---- what comes -----------------------------------------------------------------------------------------------------

Status ReaderSide::on_control(Connection& c, const Header& header, std::span<const std::byte> payload) {
  Fetching& fetching = fetching_.at(c.id());
  if (c.phase() == Phase::kHandshake) {
    ASSIGN_OR_RETURN(const bool ready, reader_step(c, self_, header, payload));
    if (!ready) return ok_status();
    c.set_phase(Phase::kReady, relay_now_ms());
    assign(*fetching.peer);
    return ok_status();
  }
  if (header.type != FrameType::kRefuse) return invalid_argument("a writer sent a {}", frame_type_name(header.type));
  if (header.ticket == 0) return refusal(header);
  Get* get = find(header.ticket);
  if (get == nullptr || get->peer != fetching.peer || get->order.put != header.op) return ok_status();
  const RelayOp op = get->order.op;
  const auto code = static_cast<StatusCode>(header.code);
  drop(header.ticket, StatusCode::kInvalidArgument);
  // What the writer did not want to give, and what ended while it was being got.
  if (code == StatusCode::kInvalidArgument) {
    table_.end_get(op, invalid_argument("the writer has no such put for us, or it is over"));
  } else {
    table_.end_get(op, error(StatusCode::kUnavailable, "the writer's put ended: {}", status_code_name(code)));
  }
  return ok_status();
}

Status ReaderSide::data_begin(Connection& c, const Header& header) {
  if (c.phase() != Phase::kReady) return invalid_argument("a DATA frame came during the handshake");
  Fetching& fetching = fetching_.at(c.id());
  fetching.frame = header;
  fetching.have = 0;
  fetching.hasher->reset();
  Get* get = find(header.ticket);
  fetching.discard = get == nullptr || get->peer != fetching.peer;
  if (fetching.discard) return ok_status();
  const auto flight = std::find_if(fetching.flights.begin(), fetching.flights.end(), [&](const Flight& f) {
    return f.ticket == header.ticket && f.range.offset == header.offset;
  });
  const bool fits = flight != fetching.flights.end() && header.length <= flight->range.end - flight->range.offset &&
                    (header.length > 0 || flight->range.empty_put) && get->order.put == header.op &&
                    get->order.generation == header.generation;
  if (!fits) return broken(*get, internal_error("the writer sent bytes that nobody asked for"));
  if (options_.checksum && (header.flags & kFlagChecksum) == 0) {
    return broken(*get, internal_error("the writer sent bytes without a checksum"));
  }
  return ok_status();
}

// The writer breaks the rules: its get ends with that, and so does the connection.
Status ReaderSide::broken(Get& get, const Status& why) {
  const RelayOp op = get.order.op;
  drop(op.value, StatusCode::kInternal);
  table_.end_get(op, why);
  return why;
}

std::size_t ReaderSide::data_space(Connection& c, std::span<iovec> out) {
  Fetching& fetching = fetching_.at(c.id());
  const uint64_t left = fetching.frame.length - fetching.have;
  const Get* get = fetching.discard ? nullptr : find(fetching.frame.ticket);
  if (get != nullptr && table_.pin(get->order.op)) {
    fetching.pinned = true;
    return get->into.fill(fetching.frame.offset + fetching.have, left, out);
  }
  fetching.discard = true;
  out[0] = {scratch_.data(), static_cast<std::size_t>(std::min<uint64_t>(left, scratch_.size()))};
  return 1;
}

void ReaderSide::data_received(Connection& c, std::size_t bytes) {
  Fetching& fetching = fetching_.at(c.id());
  if (fetching.pinned) {
    fetching.pinned = false;
    const Get* get = find(fetching.frame.ticket);
    const RelayOp op{fetching.frame.ticket};
    if ((fetching.frame.flags & kFlagChecksum) != 0 && get != nullptr) {
      std::array<iovec, kMaxPiecesPerCall> pieces{};
      for (uint64_t done = 0; done < bytes;) {
        const std::size_t count = get->into.fill(fetching.frame.offset + fetching.have + done, bytes - done, pieces);
        for (std::size_t i = 0; i < count; ++i) {
          fetching.hasher->add({static_cast<const std::byte*>(pieces[i].iov_base), pieces[i].iov_len});
          done += pieces[i].iov_len;
        }
      }
    }
    table_.unpin(op);
  }
  fetching.have += bytes;
}

Status ReaderSide::data_end(Connection& c, uint64_t sum) {
  Fetching& fetching = fetching_.at(c.id());
  Get* get = fetching.discard ? nullptr : find(fetching.frame.ticket);
  if (get == nullptr) return ok_status();
  const Header& frame = fetching.frame;
  if ((frame.flags & kFlagChecksum) != 0 && fetching.hasher->digest() != sum) {
    return broken(*get,
                  internal_error("the checksum of bytes [{}, +{}) of the put is wrong", frame.offset, frame.length));
  }
  const auto flight = std::find_if(fetching.flights.begin(), fetching.flights.end(), [&](const Flight& f) {
    return f.ticket == frame.ticket && f.range.offset == frame.offset;
  });
  if (flight == fetching.flights.end()) return ok_status();
  flight->range.offset += frame.length;
  const bool empty = flight->range.empty_put;
  get->received += frame.length;
  if (flight->range.offset < flight->range.end) return ok_status();
  fetching.flights.erase(flight);
  if (get->received == get->order.total && (get->order.total > 0 || empty)) {
    complete(*get);
  } else {
    assign(*get->peer);
  }
  return ok_status();
}

bool ReaderSide::next_data(Connection&, OutgoingFrame&) { return false; }

bool ReaderSide::busy(const Connection& c) const {
  const auto at = fetching_.find(c.id());
  return at != fetching_.end() && !at->second.flights.empty();
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void ReaderSide::complete(Get& get) {
  const RelayOp op = get.order.op;
  std::vector<SharedBytes> parts = std::move(get.parts);
  const bool own = parts.front().owner() != nullptr;
  drop(op.value, StatusCode::kOk);
  table_.end_get(op, own ? table_.lend(std::move(parts)) : std::move(parts));
}

void ReaderSide::send_release(const Get& get, StatusCode code) {
  Connection* any = nullptr;
  for (const uint64_t id : get.peer->connections) {
    Connection* c = connections_.find(id);
    if (c == nullptr || c->phase() != Phase::kReady) continue;
    if (any == nullptr) any = c;
  }
  if (any == nullptr) return;
  Header header;
  header.type = FrameType::kRelease;
  header.code = static_cast<uint32_t>(code);
  header.op = get.order.put;
  header.generation = get.order.generation;
  header.ticket = get.order.op.value;
  if (any->send(header).ok()) connections_.touch(*any);
}

// Forgets a get, and tells its writer how it ended.
void ReaderSide::drop(uint64_t ticket, StatusCode code) {
  const auto at = gets_.find(ticket);
  if (at == gets_.end()) return;
  const std::unique_ptr<Get> get = std::move(at->second);
  gets_.erase(at);
  memory_ -= get->memory;
  room_ = true;
  if (get->peer == nullptr) return;
  if (get->next > 0) send_release(*get, code);
  Peer& peer = *get->peer;
  peer.gets.erase(ticket);
  for (const uint64_t id : peer.connections) {
    std::erase_if(fetching_.at(id).flights, [&](const Flight& f) { return f.ticket == ticket; });
  }
}

// What a get that is over left free goes to the others: at the end of the turn, never from inside an end.
void ReaderSide::flush() {
  while (std::exchange(room_, false)) {
    start_waiting();
    for (auto& [key, peer] : peers_) assign(*peer);
    connections_.flush();
  }
  connections_.flush();
}

void ReaderSide::get_ended(RelayOp op, StatusCode code) {
  drop(op.value, code == StatusCode::kOk ? StatusCode::kCancelled : code);
}

void ReaderSide::fail_peer(Peer& peer, const Status& why) {
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, get] : peer.gets) tickets.push_back(ticket);
  for (const uint64_t ticket : tickets) {
    drop(ticket, why.code());
    table_.end_get(RelayOp{ticket}, Status(StatusCode::kUnavailable, why.message()));
  }
}

// The gets whose connection broke go on over another one, once.
void ReaderSide::retry_or_fail(Peer& peer, const std::vector<uint64_t>& tickets, const Status& why) {
  for (const uint64_t ticket : tickets) {
    Get* get = find(ticket);
    if (get == nullptr || ++get->breaks <= kMaxBreaks) continue;
    drop(ticket, StatusCode::kUnavailable);
    table_.end_get(RelayOp{ticket}, Status(StatusCode::kUnavailable, why.message()));
  }
  if (peer.gets.empty()) return;
  if (peer.connections.empty()) {
    peer.retry_ms = relay_now_ms() + kReconnectPauseMs;
  } else {
    assign(peer);
  }
}

void ReaderSide::on_lost(Connection& c, const Status& why) {
  LOG_DEBUG("relay tcp: a connection to a writer ended: {}", why.message());
  const auto at = fetching_.find(c.id());
  if (at == fetching_.end()) return;
  const Fetching fetching = std::move(at->second);
  fetching_.erase(at);
  Peer& peer = *fetching.peer;
  std::erase(peer.connections, c.id());
  if (c.phase() != Phase::kReady || c.silent()) {
    // Not reached, not let in, or frozen. Others that stand may be better off.
    if (peer.connections.empty() || c.silent()) fail_peer(peer, why);
    return;
  }
  std::vector<uint64_t> tickets;
  for (const Flight& flight : fetching.flights) {
    Get* get = find(flight.ticket);
    if (get == nullptr) continue;
    get->again.push_back(flight.range);
    if (std::find(tickets.begin(), tickets.end(), flight.ticket) == tickets.end()) tickets.push_back(flight.ticket);
  }
  retry_or_fail(peer, tickets, why);
}

int64_t ReaderSide::check_time(int64_t now_ms) {
  int64_t due_ms = std::min(connections_.check_time(now_ms), pool_.trim(now_ms));
  for (auto it = peers_.begin(); it != peers_.end();) {
    Peer& peer = *it->second;
    ++it;
    if (peer.retry_ms != 0 && now_ms >= peer.retry_ms) {
      peer.retry_ms = 0;
      if (!peer.gets.empty()) ensure_connections(peer, 1);
    }
    if (peer.retry_ms != 0) due_ms = std::min(due_ms, peer.retry_ms);
    tidy(peer);
  }
  return due_ms;
}

// Writers that nobody reads from are forgotten when their last connection is closed.
void ReaderSide::tidy(Peer& peer) {
  if (peer.gets.empty() && peer.connections.empty()) peers_.erase(std::string(peer.key));
}

}  // namespace millrace::tcp
