// The gets: memory, links, what is asked for, how each ends. What arrives: reader_data.cc.
#include "relay/session/reader.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "relay/session/core.h"

namespace millrace::session {
namespace {

constexpr std::size_t kScratchBytes = 64u << 10;

}  // namespace

// Half of the pool is kept in freed blocks: enough to take the next gets without the kernel, without doubling the
// relay's memory for good.
Reader::Reader(Core& core) : core_(core), pool_(core.options.pool_bytes / 2), scratch_(kScratchBytes) {}

// The ends were delivered by OpTable::close(). After a clean end the transport writes to no get any more; else it may
// still write to those that it fetched for, whose memory then stays until the process ends.
void Reader::clear(bool clean) {
  if (!clean) {
    static std::mutex mutex;
    static auto& abandoned = *new std::vector<std::unique_ptr<Get>>;
    const std::lock_guard lock(mutex);
    for (auto& [ticket, get] : gets_) {
      if (get->fetching > 0) abandoned.push_back(std::move(get));
    }
  }
  routes_.clear();
  waiting_.clear();
  gets_.clear();
  remotes_.clear();
  unanswered_.clear();
  memory_ = 0;
}

Reader::Get* Reader::find(uint64_t ticket) {
  const auto at = gets_.find(ticket);
  return at == gets_.end() || at->second->over ? nullptr : at->second.get();
}

// ---- begin ----------------------------------------------------------------------------------------------------------

void Reader::start(const GetTask& task) {
  auto get = std::make_unique<Get>();
  get->task = task;
  CHECK(gets_.emplace(task.op.value, std::move(get)).second);
  waiting_.push_back(task.op.value);
  startable_ = true;  // flush() starts it
}

// In the order in which they came, as long as there is memory.
void Reader::start_waiting() {
  while (!waiting_.empty()) {
    const uint64_t ticket = waiting_.front();
    // A get that does not fit stops the queue. If smaller ones passed it, a large one could starve until its deadline.
    if (Get* waiting = find(ticket); waiting != nullptr && !prepare(*waiting)) return;
    waiting_.pop_front();
    Get* get = find(ticket);
    if (get == nullptr) continue;  // it is over already
    Remote& remote = remote_of(get->task.writer);
    get->remote = &remote;
    remote.gets.emplace(get->task.op.value, get);
    ensure_links(remote, core_.channel->links_wanted(remote.target, get->task.total));
  }
}

// False: not yet. Else it has its memory, or it is over and erased.
bool Reader::prepare(Get& get) {
  const RelayOp op = get.task.op;
  const std::shared_ptr<const GetRequest> request = core_.table.get(op);
  if (request == nullptr) {
    gets_.erase(op.value);
    return true;
  }
  get.layout = Layout(request->sizes, core_.channel->traits().frames);
  get.layout.set_alone(get.task.writer.device);
  // A caller's spans cost this relay no memory, so such a get never waits here.
  const std::size_t bytes = request->destination.empty() ? get.layout.block_bytes() : 0;
  const std::size_t limit = core_.options.pool_bytes;
  // Alone, a get may exceed the limit, else it would wait for ever: alignment adds to its bytes, and ucx takes gets
  // larger than its pool. Therefore memory_ may be over the limit as well.
  if (bytes > 0 && memory_ > 0 && bytes > limit - std::min(memory_, limit)) return false;
  Result<Landing> landing = land(*request, get.layout);
  if (!landing.ok()) {
    core_.table.end_get(op, landing.status());
    gets_.erase(op.value);
    return true;
  }
  get.landing = std::move(*landing);
  get.landing.memory = bytes;
  memory_ += bytes;
  return true;
}

Result<Landing> Reader::land(const GetRequest& request, const Layout& layout) {
  Landing landing;
  if (!request.destination.empty()) {
    landing.direct = true;
    for (const std::span<std::byte> part : request.destination) {
      landing.into.add(part.data(), part.size());
      landing.parts.emplace_back(nullptr, part.data(), part.size());
    }
    return landing;
  }
  ASSIGN_OR_RETURN(std::optional<Landing> made, core_.channel->make_memory(request, layout));
  if (made) return std::move(*made);
  const ReceivePool::Block block = pool_.take(layout.block_bytes());
  if (block.data == nullptr) {
    return error(StatusCode::kResourceExhausted, "there is no memory for a get of {} bytes", layout.block_bytes());
  }
  for (std::size_t i = 0; i < layout.parts(); ++i) {
    std::byte* at = block.data + layout.block_offset(i);
    landing.into.add(at, layout.size(i));
    landing.parts.emplace_back(block.owner, at, layout.size(i));
  }
  return landing;
}

Reader::Remote& Reader::remote_of(const Target& target) {
  std::unique_ptr<Remote>& remote = remotes_[target.key];
  if (remote == nullptr) {
    remote = std::make_unique<Remote>();
    remote->key = target.key;
    remote->target = target;
  }
  return *remote;
}

void Reader::ensure_links(Remote& remote, std::size_t wanted) {
  // While a retry is due, new gets wait for it as well: kReconnectPauseMs lies between any two attempts to reach a
  // writer whose links broke.
  while (remote.links.size() < wanted && remote.retry_ms == 0) {
    const Status status = connect(remote);
    if (status.ok()) continue;
    // With a link left the gets go on over that one, only slower.
    if (remote.links.empty()) fail_remote(remote, status);
    return;
  }
  assign(remote);
}

Status Reader::connect(Remote& remote) {
  ASSIGN_OR_RETURN(Link * link, core_.channel->connect(remote.target));
  CHECK(!routes_.contains(link));
  Route& route = routes_[link];
  route.id = next_route_++;
  route.remote = &remote;
  remote.links.push_back(link);
  return ok_status();
}

void Reader::on_ready(Link& link) {
  if (const auto at = routes_.find(&link); at != routes_.end()) assign(*at->second.remote);
}

// ---- asking ---------------------------------------------------------------------------------------------------------

// Gives the remote's links work, the idlest first, to each get in turn.
void Reader::assign(Remote& remote) {
  bool any = true;
  while (any) {
    any = false;
    for (auto& [ticket, get] : remote.gets) any = assign_one(*get) || any;
  }
}

std::optional<Reader::Range> Reader::next_range(Get& get) {
  if (!get.again.empty()) {
    const Range range = get.again.back();
    get.again.pop_back();
    return range;
  }
  const uint64_t total = get.task.total;
  // A put without bytes has one range, [0, 0), because its sizes must still be checked by the writer. UINT64_MAX marks
  // that it was asked for; any value over 0 also makes finish_drop() send the RELEASE.
  if (get.next == UINT64_MAX || (total > 0 && get.next >= total)) return std::nullopt;
  if (total == 0) {
    get.next = UINT64_MAX;
    return Range{0, 0};
  }
  const std::size_t most = core_.channel->traits().range_bytes;
  const uint64_t end =
      most == 0 ? get.layout.frame_end(get.next) : get.next + std::min<uint64_t>(most, total - get.next);
  return Range{std::exchange(get.next, end), end};
}

bool Reader::assign_one(Get& get) {
  if (get.over || get.proving) return false;
  if (get.again.empty() && get.next > 0 && get.next >= get.task.total) return false;  // all is asked for
  Link* best = nullptr;
  std::size_t least = kMaxRangesPerLink;
  for (Link* link : get.remote->links) {
    if (!link->ready()) continue;
    const std::vector<Flight>& flights = routes_.at(link).flights;
    if (flights.size() >= least) continue;
    // The limit is for each get and link, so that one large get leaves links to the others.
    const auto in_flight =
        std::count_if(flights.begin(), flights.end(), [&](const Flight& f) { return f.ticket == get.task.op.value; });
    if (in_flight >= core_.channel->traits().ranges_in_flight) continue;
    best = link;
    least = flights.size();
  }
  if (best == nullptr) return false;
  const std::optional<Range> range = next_range(get);
  if (!range) return false;
  // A queue that is full belongs to a dead writer; time ends it.
  if (ask(*best, get, *range).ok()) return true;
  get.again.push_back(*range);
  return false;
}

Status Reader::ask(Link& link, Get& get, const Range& range) {
  const int64_t now_ms = monotonic_ms();
  link.begin_use(busy(link), now_ms);
  RETURN_IF_ERROR(send_request(link, get, range));
  routes_.at(&link).flights.push_back({get.task.op.value, range, Gaps(range.offset, range.end), now_ms, false});
  return ok_status();
}

Status Reader::send_request(Link& link, const Get& get, const Range& range) {
  Header header;
  header.type = FrameType::kRequest;
  header.flags = static_cast<uint8_t>((core_.options.checksum ? kFlagChecksum : 0) | (get.by_frames ? kFlagInline : 0));
  header.length = kRequestBytes;
  header.op = get.task.put;
  header.generation = get.task.generation;
  header.ticket = get.task.op.value;
  header.offset = range.offset;
  header.extra = range.end - range.offset;
  return link.send(header, encode(RequestBody{get.task.total, get.task.sizes_hash}));
}

bool Reader::busy(const Link& link) const {
  const auto at = routes_.find(const_cast<Link*>(&link));
  // A link with nothing outstanding is not pinged and cannot be found dead. So whatever waits for an answer of the
  // writer must be counted in `flights` or `expected`, else a frozen writer would end its get by the deadline only.
  return at != routes_.end() && (!at->second.flights.empty() || at->second.expected > 0);
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Reader::send_release(const Get& get, StatusCode code, bool answer) {
  const Traits& traits = core_.channel->traits();
  // Any link of the writer will do, as a RELEASE names the get and not the link that it asked on.
  Link* link = nullptr;
  for (Link* one : get.remote->links) {
    if (link == nullptr && one->ready()) link = one;
  }
  // No link stands: the writer notices the loss by itself and ends the reading after silent_ms.
  if (link == nullptr) return;
  Header header;
  header.type = FrameType::kRelease;
  header.flags = answer || traits.repeats ? kFlagAnswer : 0;
  header.code = static_cast<uint32_t>(code);
  header.op = get.task.put;
  header.generation = get.task.generation;
  header.ticket = get.task.op.value;
  link->begin_use(busy(*link), monotonic_ms());
  // With kFlagAnswer the RELEASE is kept until RELEASED arrives; repeat() sends it again where frames may be lost.
  if (!link->send(header).ok() || header.flags == 0) return;
  if (!unanswered_.emplace(header.ticket, Unanswered{link, header, monotonic_ms()}).second) return;
  ++routes_.at(link).expected;
}

// The get is over here. The RELEASE with its code goes out at once, or when the channel no longer fetches for it.
void Reader::drop(uint64_t ticket, StatusCode code) {
  const auto at = gets_.find(ticket);
  if (at == gets_.end() || at->second->over) return;
  Get& get = *at->second;
  if (get.remote != nullptr) {
    for (Link* link : get.remote->links) {
      std::erase_if(routes_.at(link).flights, [&](const Flight& f) { return f.ticket == ticket; });
    }
  }
  // `over` hides the get from find(), so nothing that still arrives is taken for it. The record itself must stay while
  // the channel writes to its memory or names its layout: fetched() erases it.
  get.over = code;
  if (get.fetching == 0) return finish_drop(get, code);
  core_.channel->abandon(get.task.op);
}

void Reader::finish_drop(Get& get, StatusCode code) {
  const uint64_t ticket = get.task.op.value;
  CHECK(memory_ >= get.landing.memory);
  memory_ -= get.landing.memory;
  startable_ = true;
  if (get.remote != nullptr) {
    // Only where the writer knows of the get (something was asked for) and has not been sent its RELEASE by
    // check_complete().
    if (get.next > 0 && !get.proving) send_release(get, code, false);
    get.remote->gets.erase(ticket);
  }
  gets_.erase(ticket);
}

// What a get that is over left free goes to the others: at the end of the turn, never from inside an end.
void Reader::flush() {
  while (std::exchange(startable_, false)) {
    start_waiting();
    for (auto& [key, remote] : remotes_) assign(*remote);
  }
}

void Reader::get_ended(RelayOp op, StatusCode code) {
  // kOk never arrives here: Core::ended() posts errors only. Code 0 on the wire would release the put as read.
  drop(op.value, code == StatusCode::kOk ? StatusCode::kCancelled : code);
}

void Reader::fail_remote(Remote& remote, const Status& why) {
  // A copy: drop() erases from remote.gets.
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, get] : remote.gets) tickets.push_back(ticket);
  for (const uint64_t ticket : tickets) {
    // First here, then in the table: the get_ended() that end_get() posts to the loop finds nothing left to do.
    drop(ticket, why.code());
    core_.table.end_get(RelayOp{ticket}, why);
  }
}

// The gets whose link broke go on over another one.
void Reader::retry_or_fail(const Route& route, const std::vector<uint64_t>& tickets, const Status& why) {
  Remote& remote = *route.remote;
  for (const uint64_t ticket : tickets) {
    Get* get = find(ticket);
    // Counted for each get. A link that breaks again and again so ends each get after a bounded number of retries,
    // while a new get has its full number. What breaks one of the links with a writer often breaks all: those that were
    // open at a break that was counted are not counted again.
    if (get == nullptr || route.id < get->counted_route) continue;
    get->counted_route = next_route_;
    if (++get->breaks <= core_.channel->traits().reconnects) continue;
    drop(ticket, StatusCode::kUnavailable);
    core_.table.end_get(RelayOp{ticket}, Status(StatusCode::kUnavailable, why.message()));
  }
  if (remote.gets.empty()) return;
  if (remote.links.empty()) {
    remote.retry_ms = monotonic_ms() + kReconnectPauseMs;
  } else {
    assign(remote);
  }
}

void Reader::on_lost(Link& link, const Status& why) {
  const auto at = routes_.find(&link);
  if (at == routes_.end()) return;
  LOG_DEBUG("relay: a link to a writer ended: {}", why.message());
  const Route route = std::move(at->second);
  routes_.erase(at);
  Remote& remote = *route.remote;
  std::erase(remote.links, &link);
  // The link is destroyed on return; repeat() must not send on it. A get in `proving` loses its proof with it. That
  // happens in channels without reconnects only, where fail_remote() below ends it.
  std::erase_if(unanswered_, [&](const auto& entry) { return entry.second.link == &link; });
  if (!link.ready() || link.silent || core_.channel->traits().reconnects == 0) {
    // Not reached, not let in, or frozen. Others that stand may be better off.
    if (remote.links.empty() || link.silent) fail_remote(remote, Status(StatusCode::kUnavailable, why.message()));
    return;
  }
  std::vector<uint64_t> tickets;
  for (const Flight& flight : route.flights) {
    Get* get = find(flight.ticket);
    if (get == nullptr) continue;
    // What arrived in whole, checked frames is out of the gaps and is not asked for again. Half a frame is still in
    // them.
    for (const auto& [begin, end] : flight.gaps.all()) get->again.push_back({begin, end});
    if (flight.range.offset == flight.range.end) get->again.push_back(flight.range);
    if (std::find(tickets.begin(), tickets.end(), flight.ticket) == tickets.end()) tickets.push_back(flight.ticket);
  }
  retry_or_fail(route, tickets, why);
}

// ---- time -----------------------------------------------------------------------------------------------------------

// Where frames may be lost: what has no answer is sent again. A peer that is dead ends the link, and all this with it.
void Reader::repeat(int64_t now_ms, int64_t& due_ms) {
  const int64_t every_ms = std::min<int64_t>(kRepeatMs, Liveness::ping_every_ms(core_.options.silent_ms));
  for (auto& [link, route] : routes_) {
    for (Flight& flight : route.flights) {
      Get* get = find(flight.ticket);
      if (get == nullptr || flight.answered) continue;
      if (now_ms >= flight.asked_ms + every_ms) {
        flight.asked_ms = now_ms;
        (void)send_request(*link, *get, flight.range);
      }
      due_ms = std::min(due_ms, flight.asked_ms + every_ms);
    }
  }
  for (auto& [ticket, release] : unanswered_) {
    if (now_ms >= release.sent_ms + every_ms) {
      release.sent_ms = now_ms;
      (void)release.link->send(release.header);
    }
    due_ms = std::min(due_ms, release.sent_ms + every_ms);
  }
}

int64_t Reader::check_time(int64_t now_ms) {
  // Blocks that were kept for later gets are returned to the system by time, also where no get is open.
  int64_t due_ms = pool_.trim(now_ms);
  if (core_.channel->traits().repeats) repeat(now_ms, due_ms);
  for (auto it = remotes_.begin(); it != remotes_.end();) {
    Remote& remote = *it->second;
    ++it;
    if (remote.retry_ms != 0 && now_ms >= remote.retry_ms) {
      remote.retry_ms = 0;
      if (!remote.gets.empty()) ensure_links(remote, 1);
    }
    if (remote.retry_ms != 0) due_ms = std::min(due_ms, remote.retry_ms);
    tidy(remote);
  }
  return due_ms;
}

// A writer without gets is erased when its last link is closed.
void Reader::tidy(Remote& remote) {
  if (remote.gets.empty() && remote.links.empty()) remotes_.erase(std::string(remote.key));
}

}  // namespace millrace::session
