#include "relay/session/writer.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/log.h"
#include "relay/session/core.h"
#include "relay/session/secret.h"

namespace millrace::session {
namespace {

constexpr std::size_t kKeyBytes = 32;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace

Writer::Writer(Core& core) : core_(core) {
  // A new random key for each instance: the generation of a put of an earlier or another instance never fits here.
  std::array<std::byte, kKeyBytes> key{};
  fill_random(key);
  key_.assign(reinterpret_cast<const char*>(key.data()), key.size());
}

// A capability for one put of this instance: only a holder of the descriptor knows it. Never 0, which is no put's.
uint64_t Writer::generation_of(RelayOp op) const {
  Transcript transcript;  // the proof as a keyed hash of the op
  transcript.writer_instance = op.value;
  return std::max<uint64_t>(load_u64(prove(key_, Prover::kWriter, transcript).data()), 1);
}

Result<std::string> Writer::put(RelayOp op) {
  // The op is pinned, so no end comes before puts_ has the record: ended() cannot miss it.
  auto put = std::make_shared<Put>();
  put->op = op;
  put->generation = generation_of(op);
  put->request = core_.table.put(op);
  CHECK(put->request != nullptr);  // pinned
  const std::vector<std::size_t> sizes = part_sizes(put->request->parts);
  put->layout = Layout(sizes, core_.channel->traits().frames);
  for (const SharedBytes& part : put->request->parts) put->map.add(part);
  Descriptor descriptor;
  descriptor.backend = core_.channel->capabilities().name;
  descriptor.instance = core_.instance;
  descriptor.op = op;
  descriptor.generation = put->generation;
  describe_sizes(sizes, descriptor);
  put->sizes_hash = descriptor.sizes_hash;
  // Without the mutex: store() may copy the whole put, while other threads look up and release puts.
  ASSIGN_OR_RETURN(descriptor.tail, core_.channel->store(*put));
  const std::lock_guard lock(mutex_);
  puts_.emplace(op.value, std::move(put));
  return encode_descriptor(descriptor);
}

std::shared_ptr<Put> Writer::find(RelayOp op) const {
  const std::lock_guard lock(mutex_);
  const auto at = puts_.find(op.value);
  return at == puts_.end() ? nullptr : at->second;
}

Hold Writer::hold(const std::shared_ptr<Put>& put) {
  const std::lock_guard lock(mutex_);
  // Once the last reader is done no bytes may leave: the owner is about to have its end and to use the credit again.
  if (put->ended || put->complete_for_all) return {};
  ++put->holds;
  return {this, put};
}

// The last hold of a put that has ended gives credit and bytes back; of one that all readers have, it is the end.
void Writer::release(const std::shared_ptr<Put>& put) {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    CHECK(put->holds > 0);
    if (--put->holds > 0 || (!put->ended && !put->complete_for_all)) return;
    ended = put->ended;
    if (ended) puts_.erase(put->op.value);
  }
  // On the loop's thread: a release may come under a lock of the channel's, and the end calls the owner.
  if (!ended) return core_.loop.post([this, put] { (void)core_.table.end_put(put->op, put->worst); });
  put->stored.reset();
  core_.table.release(put->op);
}

bool Writer::ended(RelayOp op, const Status& status) {
  std::shared_ptr<Put> put;
  bool free = false;
  {
    const std::lock_guard lock(mutex_);
    const auto at = puts_.find(op.value);
    if (at == puts_.end()) return true;
    put = at->second;
    put->ended = true;
    free = put->holds == 0;
    if (free) puts_.erase(at);
  }
  // From here on another put may take the same memory: nothing holds this one, and it gets no further hold.
  if (free) put->stored.reset();
  core_.loop.post([this, put, status] { put_ended(put, status); });
  // Where it is not free, release() of the last hold frees bytes and credit later.
  return free;
}

void Writer::clear() {
  // A copy: clearing a reading releases its hold, and release() takes the mutex and may erase from puts_.
  std::unordered_map<uint64_t, std::shared_ptr<Put>> puts;
  {
    const std::lock_guard lock(mutex_);
    puts = puts_;
  }
  serving_.clear();
  // A reading holds its put, and the put its readings: without this neither would go.
  for (auto& [op, put] : puts) put->reading.clear();
}

// ---- what readers ask -----------------------------------------------------------------------------------------------

Status Writer::on_frame(Link& link, const Header& header, std::span<const std::byte> payload) {
  if (header.type == FrameType::kRequest) return on_request(link, header, payload);
  if (header.type == FrameType::kRelease) return on_release(link, header);
  return invalid_argument("a reader sent a {}", frame_type_name(header.type));
}

Status Writer::refuse(Link& link, uint64_t op, uint64_t ticket, const Status& why) {
  const std::string_view text = std::string_view(why.message()).substr(0, kMaxReasonBytes);
  Header header;
  header.type = FrameType::kRefuse;
  header.code = static_cast<uint32_t>(why.code());
  header.op = op;
  header.ticket = ticket;
  header.length = static_cast<uint32_t>(text.size());
  return link.send(header, bytes_of(text));
}

Status Writer::check_request(const Link& link, const Put& put, const Header& header, const RequestBody& body) const {
  const uint64_t total = put.map.total();
  const ReaderKey key{link.peer.instance, header.ticket};
  const std::string& destination = put.request->destination;
  if (!destination.empty() && destination != link.peer.label) {
    return invalid_argument("put {} is for {}; it was asked for by {}", put.op.value, destination, link.peer.label);
  }
  if (body.total != total || body.sizes_hash != put.sizes_hash) {
    return invalid_argument("the sizes of put {} are others: {} bytes; the reader was given {}", put.op.value, total,
                            body.total);
  }
  const std::size_t most = core_.channel->traits().range_bytes;
  const bool inside = header.offset <= total && header.extra <= total - header.offset;
  // Where a range is a frame, both sides must cut the run at the same places.
  const bool cut = most > 0
                       ? header.extra <= most
                       : inside && (total == 0 || (header.offset < total && header.offset + header.extra ==
                                                                                put.layout.frame_end(header.offset)));
  if (!inside || !cut || (header.extra == 0) != (total == 0)) {
    return invalid_argument("the range [{}, +{}) is not one of {} bytes", header.offset, header.extra, total);
  }
  // A late copy of a REQUEST must not open a reading that a RELEASE has closed: no second RELEASE would come, and the
  // put would be held until its lease ends.
  if (put.over.contains(key)) return invalid_argument("the reader has released put {}", put.op.value);
  // Gets that end without all bytes leave the put open, so their number is bounded by the lease alone: a peer that
  // begins and drops gets in a loop must not grow these tables.
  if (put.over.size() >= kMaxGetsOfPut || (!put.reading.contains(key) && put.reading.size() >= kMaxReadings)) {
    return invalid_argument("put {} has {} readers and {} that are over; wanted less than {} and {}", put.op.value,
                            put.reading.size(), put.over.size(), kMaxReadings, kMaxGetsOfPut);
  }
  return ok_status();
}

Status Writer::on_request(Link& link, const Header& header, std::span<const std::byte> payload) {
  const RelayOp op{header.op};
  Serving& serving = serving_[&link];
  if (serving.jobs.size() >= kMaxRangesPerLink) {
    return invalid_argument("a reader asks for {} ranges at once; wanted at most {}", serving.jobs.size() + 1,
                            kMaxRangesPerLink);
  }
  const std::shared_ptr<Put> put = find(op);
  // The generation is checked before the op's state is disclosed. A put that is over has no record any more, but its
  // generation can be computed: so a reader that is late is answered "is over", and only a forged one counts as a bad
  // frame.
  if (op.value == 0 || header.generation != (put != nullptr ? put->generation : generation_of(op))) {
    core_.table.count_bad_frame();
    return refuse(link, header.op, header.ticket,
                  invalid_argument("put {} is not the one that is asked for", op.value));
  }
  // Held, so that the put cannot end between the checks and the note that it is being read.
  Hold held = put == nullptr ? Hold() : hold(put);
  if (!held) return refuse(link, header.op, header.ticket, invalid_argument("put {} is over", op.value));
  const RequestBody body = decode_request(payload.first<kRequestBytes>());
  if (const Status fits = check_request(link, *put, header, body); !fits.ok()) {
    return refuse(link, header.op, header.ticket, fits);
  }
  // Before `asked` grows: a link that was idle has an old seen_ms and would count as silent at once.
  link.begin_use(busy(link), monotonic_ms());
  Put::Reading& reading = put->reading[{link.peer.instance, header.ticket}];
  // `links` counts the links that this get asked on, not its requests: on_lost() takes one off for each.
  if (serving.asked.insert({op.value, header.ticket}).second) ++reading.links;
  // The reader has come back on a new link within silent_ms.
  if (std::exchange(reading.lost_since, -1) >= 0) --lost_;
  std::string where;
  if ((header.flags & kFlagInline) == 0 && core_.channel->grant(link, *put, header, where)) {
    // Kept until the RELEASE, as the reader fetches whenever it likes. Without hold_grants the channel has another way
    // to keep a late reader from wrong bytes (ucx: the generation in the slot), and `held` ends with this function.
    if (core_.channel->traits().hold_grants) reading.granted = std::move(held);
    Header answer = header;
    answer.type = FrameType::kGrant;
    answer.flags = 0;
    answer.length = static_cast<uint32_t>(where.size());
    return link.send(answer, bytes_of(where));
  }
  // A job holds nothing while it waits: next_data() takes a hold for each frame. So a reader that never drains its link
  // does not keep a put that has ended.
  serving.jobs.push_back({put, header.ticket, header.offset, header.offset + header.extra,
                          core_.options.checksum || (header.flags & kFlagChecksum) != 0});
  link.wake();
  return ok_status();
}

Status Writer::on_release(Link& link, const Header& header) {
  const RelayOp op{header.op};
  const std::shared_ptr<Put> put = find(op);
  // Without an answer: a reader has the generation from its descriptor, so this is damaged or forged.
  if (op.value == 0 || header.generation != (put != nullptr ? put->generation : generation_of(op))) {
    core_.table.count_bad_frame();
    return ok_status();
  }
  bool open = put != nullptr;
  if (open) {
    const std::lock_guard lock(mutex_);
    open = !put->ended;
  }
  // Answered also where the put is unknown, else a reader that repeats its RELEASE would never stop. The answer is the
  // proof of a get whose bytes came without a checksum: `open` means that they were not replaced before the RELEASE.
  if ((header.flags & kFlagAnswer) != 0) {
    Header answer = header;
    answer.type = FrameType::kReleased;
    answer.flags = 0;
    answer.code = static_cast<uint32_t>(open ? StatusCode::kOk : StatusCode::kUnavailable);
    RETURN_IF_ERROR(link.send(answer));
  }
  if (put == nullptr) return ok_status();
  const ReaderKey key{link.peer.instance, header.ticket};
  const bool reads = put->reading.contains(key);
  // Noted also where the REQUEST is not here: one that was overtaken by its RELEASE is refused when it comes.
  if (!reads && (!core_.channel->traits().repeats || put->over.size() >= kMaxGetsOfPut)) return ok_status();
  forget_reader(op.value, key);
  if (header.code == 0 && reads) {
    finish_reader(put, key, ok_status());
  } else {
    put->over.insert(key);
    put->reading.erase(key);  // another get may come
  }
  return ok_status();
}

// Nothing more is sent for that get.
void Writer::forget_reader(uint64_t op, const ReaderKey& key) {
  for (auto& [link, serving] : serving_) {
    if (link->peer.instance != key.first || serving.asked.erase({op, key.second}) == 0) continue;
    std::erase_if(serving.jobs, [&](const Job& job) { return job.put->op.value == op && job.ticket == key.second; });
  }
}

void Writer::finish_reader(const std::shared_ptr<Put>& put, const ReaderKey& key, const Status& status) {
  put->over.insert(key);
  ++put->complete;
  if (!status.ok()) put->worst = status;
  // Before `holds` is looked at: what this reader was granted is no reason to postpone the end.
  put->reading.erase(key);  // and its hold
  if (put->complete < put->request->readers) return;
  {
    const std::lock_guard lock(mutex_);
    // A DATA frame of another link may still be on its way. hold() refuses from here on, and release() of the last one
    // ends the put.
    put->complete_for_all = true;
    if (put->holds > 0) return;
  }
  (void)core_.table.end_put(put->op, put->worst);
}

// The readers that were in the middle get a REFUSE. What the channel still has on its way it copies, where it can.
void Writer::put_ended(const std::shared_ptr<Put>& put, const Status& status) {
  const StatusCode code = status.ok() ? StatusCode::kInvalidArgument : status.code();
  for (auto& [link, serving] : serving_) {
    link->detach(*put);
    std::erase_if(serving.jobs, [&](const Job& job) { return job.put == put; });
    const auto first = serving.asked.lower_bound({put->op.value, 0});
    const auto last = serving.asked.upper_bound({put->op.value, UINT64_MAX});
    for (auto it = first; it != last; ++it) {
      // A queue that is full belongs to a peer that reads nothing; time ends it.
      (void)refuse(*link, put->op.value, it->second, error(code, "put {} ended: {}", put->op.value, status.message()));
    }
    // A reader that fetches by itself holds the put until its RELEASE.
    // While it does, `asked` keeps the link busy: it is pinged, and a dead reader is found and its hold released.
    if (!core_.channel->traits().hold_grants) serving.asked.erase(first, last);
  }
}

// ---- sending --------------------------------------------------------------------------------------------------------

bool Writer::next_data(Link& link, Outgoing& out) {
  const auto at = serving_.find(&link);
  if (at == serving_.end()) return false;
  std::deque<Job>& jobs = at->second.jobs;
  while (!jobs.empty()) {
    // One frame, then to the end of the queue: ranges of all gets take turns.
    Job job = std::move(jobs.front());
    jobs.pop_front();
    out.put = hold(job.put);
    if (!out.put) continue;  // it ends at this moment, and put_ended() notifies the reader
    // A put without bytes still sends one empty frame: it shows the reader that the sizes were accepted.
    const uint64_t end = job.end > job.offset ? std::min<uint64_t>(job.end, job.put->layout.frame_end(job.offset)) : 0;
    out.header = {};
    out.header.type = FrameType::kData;
    out.header.length = static_cast<uint32_t>(job.end > job.offset ? end - job.offset : 0);
    out.header.op = job.put->op.value;
    out.header.generation = job.put->generation;
    out.header.ticket = job.ticket;
    out.header.offset = job.offset;
    if (job.checksum) out.header.flags = kFlagChecksum;
    job.offset += out.header.length;
    if (job.offset < job.end) jobs.push_back(std::move(job));
    return true;
  }
  return false;
}

bool Writer::busy(const Link& link) const {
  const auto at = serving_.find(const_cast<Link*>(&link));
  return at != serving_.end() && !at->second.asked.empty();
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void Writer::on_lost(Link& link, const Status& why) {
  const auto at = serving_.find(&link);
  if (at == serving_.end()) return;
  LOG_DEBUG("relay: a reader's link ended: {}", why.message());
  // The link is destroyed on return: its jobs go, and only the readings of its gets remain, by the puts.
  const Serving serving = std::move(at->second);
  serving_.erase(at);
  const int64_t now_ms = monotonic_ms();
  for (const auto& [op, ticket] : serving.asked) {
    const std::shared_ptr<Put> put = find(RelayOp{op});
    if (put == nullptr) continue;
    const auto reading = put->reading.find({link.peer.instance, ticket});
    if (reading == put->reading.end() || --reading->second.links > 0) continue;
    // Not over yet: a reader with reconnects returns on a new link, and its hold must outlast the gap.
    reading->second.lost_since = now_ms;
    ++lost_;
  }
}

void Writer::check_lost(int64_t now_ms, int64_t& due_ms) {
  if (lost_ == 0) return;
  std::vector<std::shared_ptr<Put>> puts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [op, put] : puts_) puts.push_back(put);
  }
  // Counted anew: readings that were released or ended meanwhile are not subtracted elsewhere.
  lost_ = 0;
  for (const std::shared_ptr<Put>& put : puts) {
    std::vector<ReaderKey> gone;
    for (const auto& [key, reading] : put->reading) {
      if (reading.lost_since < 0) continue;
      const int64_t until = reading.lost_since + core_.options.silent_ms;
      if (now_ms >= until) {
        gone.push_back(key);
      } else {
        ++lost_;
        due_ms = std::min(due_ms, until);
      }
    }
    for (const ReaderKey& key : gone) {
      finish_reader(put, key, Status(StatusCode::kUnavailable, "the reader of the put is gone"));
    }
  }
}

int64_t Writer::check_time(int64_t now_ms) {
  int64_t due_ms = INT64_MAX;
  check_lost(now_ms, due_ms);
  return due_ms;
}

}  // namespace millrace::session
