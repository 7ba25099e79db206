#include "relay/shm/fetcher.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace millrace::shm {

Fetcher::Fetcher(const RelayOptions& options, const InstanceId& self, OpTable& table, Poller& poller,
                 std::function<uint64_t()> next_id, std::function<void(const InstanceId&)> gone)
    : connect_timeout_ms_(options.connect_timeout_ms),
      self_(self),
      self_hash_(destination_hash(self)),
      table_(table),
      poller_(poller),
      next_id_(std::move(next_id)),
      gone_(std::move(gone)) {}

Fetcher::Link* Fetcher::link_to(const InstanceId& peer) {
  const auto at = links_.find(peer.random);
  if (at != links_.end()) return &at->second;
  // Each link maps a pool of its writer and costs descriptors; they stay until the writer is gone.
  if (links_.size() >= kMaxLinks) return nullptr;
  Link& link = links_[peer.random];
  link.peer = peer;
  link.due_ms = monotonic_ms() + connect_timeout_ms_;
  poller_.ring();
  return &link;
}

// The pointer stays good without the lock: only the loop, which calls this, erases links, and a map does not move them.
Fetcher::Link* Fetcher::link_with(uint64_t id) {
  std::lock_guard lock(mutex_);
  for (auto& [key, link] : links_) {
    if (link.id == id) return &link;
  }
  return nullptr;
}

Result<RelayOp> Fetcher::get(GetRequest request) {
  RETURN_IF_ERROR(check_get(request));
  ASSIGN_OR_RETURN(const Descriptor descriptor, descriptor_of(request, "shm"));
  // Checked before a connect: the abstract address of an instance of another host cannot exist here, and the error
  // would only come after a failed attempt.
  if (descriptor.instance.boot != boot_hash()) {
    return invalid_argument("shm relay: the descriptor is of another host, or of this one before it was started anew");
  }
  ASSIGN_OR_RETURN(const RelayOp op, table_.open_get(std::move(request), monotonic_ms()));
  std::shared_ptr<Channel> channel;
  bool has_link = false;
  {
    std::lock_guard lock(mutex_);
    Link* link = link_to(descriptor.instance);
    has_link = link != nullptr;
    // Read and appended to under one lock: the loop sets the channel and then takes `waiting`, so no get falls between.
    if (has_link) channel = link->channel;
    if (has_link && channel == nullptr) link->waiting.push_back({op, descriptor});
  }
  if (!has_link) {
    // Without the lock: the caller's `done` is destroyed here, and what it owns may use this relay.
    table_.forget(op);
    return error(StatusCode::kResourceExhausted, "shm relay: connected with {} writers, the most that it takes",
                 kMaxLinks);
  }
  // On the caller's thread and without the lock: it may run `done`, which may call get() again.
  if (channel != nullptr) serve(op, descriptor, channel);
  table_.unpin(op);
  return op;
}

void Fetcher::monitor(const InstanceId& peer) {
  std::lock_guard lock(mutex_);
  (void)link_to(peer);  // with too many links, the lease alone ends the put
}

// The op is pinned by the caller.
void Fetcher::serve(RelayOp op, const Descriptor& descriptor, const std::shared_ptr<Channel>& channel) {
  const std::shared_ptr<const GetRequest> request = table_.get(op);
  if (request == nullptr) return;
  Result<Channel::Claim> claim = channel->claim(descriptor, request->sizes, self_hash_);
  if (!claim.ok()) {
    (void)table_.end(op, claim.status());
    return;
  }
  std::vector<SharedBytes> parts = channel->parts(*claim, request->sizes);
  if (request->destination.empty()) {
    // The closure keeps the channel, and with it mapping and socket, beyond this relay's close() and the writer's
    // death. If the get has ended meanwhile, the parts are dropped here and the hold with them.
    const auto release = [channel, held = *claim] { (void)channel->release(held); };
    (void)table_.end_get(op, table_.lend(std::move(parts), release));
    return;
  }
  Job job{op, request, channel, *claim, std::move(parts)};
  // For so few bytes waking the loop would cost more than the copy, and the call does not block for long.
  if (descriptor.bytes <= kInlineCopyBytes) {
    (void)copy(job, kInlineCopyBytes);
    finish(job);
    return;
  }
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  poller_.ring();
}

// Only while the op is pinned: the destination is the caller's, which has it back after `done`.
bool Fetcher::copy(Job& job, std::size_t most) const {
  while (job.part < job.parts.size()) {
    const SharedBytes& from = job.parts[job.part];
    const std::size_t size = std::min(most, from.size_bytes() - job.at);
    if (size != 0) {
      std::memcpy(job.request->destination[job.part].data() + job.at, from.data() + job.at, size);
      job.at += size;
      most -= size;
    }
    if (job.at < from.size_bytes()) return false;
    ++job.part;
    job.at = 0;
  }
  return true;
}

void Fetcher::finish(Job& job) {
  CHECK(job.part == job.parts.size());  // all is copied
  // The bytes are right in each case, as the hold kept the slot. But a put that was cancelled during the copy must not
  // end its get as OK, in this relay as in the others.
  const bool complete = job.channel->offered(job.claim);
  (void)job.channel->release(job.claim);
  if (!complete) {
    (void)table_.end(job.op, Status(StatusCode::kCancelled, "shm relay: the put ended while it was being got"));
    return;
  }
  std::vector<SharedBytes> parts;
  for (const std::span<std::byte> into : job.request->destination) {
    parts.emplace_back(nullptr, into.data(), into.size());
  }
  (void)table_.end_get(job.op, std::move(parts));
}

bool Fetcher::copy_slice() {
  Job job;
  {
    std::lock_guard lock(mutex_);
    if (jobs_.empty()) return false;
    // Out of the queue while it is worked on: close() takes what is left in it, and releases each hold once.
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  // It counts as one of the put's readers all the same: it had taken its hold, see the header.
  if (!table_.pin(job.op)) {  // cancelled, or out of time
    (void)job.channel->release(job.claim);
    return true;
  }
  const RelayOp op = job.op;
  if (copy(job, kCopySliceBytes)) {
    finish(job);
  } else {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  table_.unpin(op);
  return true;
}

bool Fetcher::on_event(const Poller::Event& event) {
  Link* link = link_with(event.id);
  if (link == nullptr) return false;
  const InstanceId peer = link->peer;
  // First the message, then the hang-up: a writer that refuses sends its reason and closes, and both come as one event.
  if ((event.events & EPOLLIN) != 0 && link->channel == nullptr) {
    if (const Status status = answered(*link); !status.ok()) {
      fail(peer, status);
    } else if (link->channel != nullptr) {
      serve_waiting(*link);
    }
  } else if ((event.events & (EPOLLHUP | EPOLLERR)) != 0) {
    fail(peer, Status(StatusCode::kUnavailable, "shm relay: the writer is gone"));
  } else {
    table_.count_bad_frame();
    fail(peer, Status(StatusCode::kUnavailable, "shm relay: the writer sent what it must not"));
  }
  return true;
}

Status Fetcher::answered(Link& link) {
  alignas(8) std::array<std::byte, 64> message;
  // receive() has space for a few descriptors and the kernel drops the rest, so a peer cannot fill this process's
  // table; Channel::make() wants kWelcomeFds exactly.
  Packet packet = receive(link.socket, message, true);
  if (packet.kind == Packet::Kind::kNothing) return ok_status();
  if (packet.kind == Packet::Kind::kEnd) return Status(StatusCode::kUnavailable, "shm relay: the writer is gone");
  Refused refused;
  Welcome welcome;
  // The two answers differ in size, so the size selects how the bytes are read, and each is then checked in full.
  if (packet.bytes == sizeof refused) {
    std::memcpy(&refused, message.data(), sizeof refused);
    if (refused.magic == kMagic && refused.version == kVersion && refused.type == MessageType::kRefusal) {
      return error(StatusCode::kUnavailable, "shm relay: the writer refused us, reason {}",
                   static_cast<uint32_t>(refused.reason));
    }
  }
  if (packet.bytes == sizeof welcome) std::memcpy(&welcome, message.data(), sizeof welcome);
  if (packet.bytes != sizeof welcome || welcome.magic != kMagic || welcome.version != kVersion ||
      welcome.type != MessageType::kWelcome) {
    table_.count_bad_frame();
    return error(StatusCode::kUnavailable, "shm relay: the writer's answer of {} bytes is none", packet.bytes);
  }
  Result<std::shared_ptr<Channel>> channel = Channel::make(std::move(link.socket), welcome, std::move(packet.fds));
  if (!channel.ok()) {
    table_.count_bad_frame();
    // Not the channel's kInvalidArgument: the get's arguments are right, its writer is not.
    return Status(StatusCode::kUnavailable, channel.status().message());
  }
  std::lock_guard lock(mutex_);
  link.channel = std::move(*channel);
  return ok_status();
}

void Fetcher::serve_waiting(Link& link) {
  std::vector<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    waiting.swap(link.waiting);
  }
  for (const Waiting& one : waiting) {
    // It ended while it waited: cancelled, or its deadline.
    if (!table_.pin(one.op)) continue;
    serve(one.op, one.descriptor, link.channel);
    table_.unpin(one.op);
  }
}

Status Fetcher::connect(Link& link) {
  Result<Fd> socket = connect_to(link.peer);
  if (!socket.ok()) return socket.status();
  Hello hello;
  std::copy(link.peer.random.begin(), link.peer.random.end(), hello.writer);
  std::copy(self_.random.begin(), self_.random.end(), hello.reader);
  // The first message on a new socket fits into its buffer; so a failure means that the writer is gone.
  if (!send(*socket, bytes_of(hello), {})) {
    return Status(StatusCode::kUnavailable, "shm relay: the writer is gone");
  }
  const uint64_t id = next_id_();
  // EPOLLHUP comes unasked: with the Welcome read, the socket is only watched for the writer's end.
  RETURN_IF_ERROR(poller_.add(*socket, id, EPOLLIN));
  std::lock_guard lock(mutex_);
  link.id = id;
  link.socket = std::move(*socket);
  return ok_status();
}

int64_t Fetcher::tick(int64_t now_ms) {
  // Collected first: connect() and fail() take the lock themselves, and fail() erases from links_.
  std::vector<Link*> open;
  {
    std::lock_guard lock(mutex_);
    for (auto& [key, link] : links_) {
      if (link.channel == nullptr) open.push_back(&link);
    }
  }
  int64_t next = -1;
  for (Link* link : open) {
    const InstanceId peer = link->peer;
    int64_t due = link->due_ms - now_ms;
    Status status = due > 0 ? ok_status()
                            : error(StatusCode::kUnavailable, "shm relay: the writer did not answer within {} ms",
                                    connect_timeout_ms_);
    if (status.ok() && link->id == 0) {
      status = connect(*link);
      // The writer's backlog is full, not the writer gone: a burst of readers is normal at the start of a pipeline.
      if (status.code() == StatusCode::kResourceExhausted) {
        status = ok_status();
        due = std::min<int64_t>(due, kConnectRetryMs);
      }
    }
    if (!status.ok()) {
      fail(peer, status);
    } else {
      next = next < 0 ? due : std::min(next, due);
    }
  }
  return next;
}

void Fetcher::fail(const InstanceId& peer, const Status& why) {
  Link link;
  {
    std::lock_guard lock(mutex_);
    const auto at = links_.find(peer.random);
    if (at == links_.end()) return;
    // The channel goes with the link, unless a holder of received parts keeps it: those bytes stay valid.
    link = std::move(at->second);
    links_.erase(at);
  }
  poller_.remove(link.channel != nullptr ? link.channel->fd() : link.socket.get());
  for (const Waiting& one : link.waiting) (void)table_.end(one.op, why);
  // Without the lock: it ends puts, whose `done` may call get().
  gone_(peer);
}

void Fetcher::close() {
  std::map<Key, Link> links;
  std::deque<Job> jobs;
  {
    std::lock_guard lock(mutex_);
    links.swap(links_);
    jobs.swap(jobs_);
  }
  for (const auto& [key, link] : links) {
    poller_.remove(link.channel != nullptr ? link.channel->fd() : link.socket.get());
  }
  // After OpTable::close() and the loop's end: their gets have ended, only the holds are left.
  for (const Job& job : jobs) (void)job.channel->release(job.claim);
}

}  // namespace millrace::shm
