#include "relay/tcp/writer_side.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/log.h"
#include "relay/descriptor.h"
#include "relay/tcp/address.h"

namespace millrace::tcp {
namespace {

constexpr std::size_t kMaxReadings = 256;  // gets of one put that are not over
constexpr int kAcceptsPerTurn = 16;

}  // namespace

WriterSide::WriterSide(IoLoop& loop, OpTable& table, const RelayOptions& options)
    : loop_(loop),
      table_(table),
      options_(options),
      connections_(loop, *this, {options.connect_timeout_ms, options.silent_ms, false},
                   [&table] { table.count_bad_frame(); }) {
  std::array<std::byte, kMinSecretBytes> key{};
  fill_random(key);
  key_.assign(reinterpret_cast<const char*>(key.data()), key.size());
}

WriterSide::~WriterSide() {
  clear();
  stop_listening();
}

void WriterSide::stop_listening() {
  if (listener_ < 0) return;
  loop_.remove(listener_watch_);
  close(std::exchange(listener_, -1));
}

Status WriterSide::open(const Identity& self, int listener) {
  self_ = self;
  listener_ = listener;
  ASSIGN_OR_RETURN(listener_watch_, loop_.add(listener, EPOLLIN, [this](uint32_t) { on_listener(); }));
  return ok_status();
}

uint64_t WriterSide::generation_of(RelayOp op) const {
  Transcript transcript;  // the proof as a keyed hash of the op
  transcript.writer_instance = op.value;
  return load_u64(prove(key_, Prover::kWriter, transcript).data());
}

void WriterSide::clear() {
  connections_.clear();  // lets go of the frames in flight
  serving_.clear();
  offers_.clear();
}

// ---- letting readers in ---------------------------------------------------------------------------------------------

void WriterSide::on_listener() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = accept_one(listener_);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        accept_again_ms_ = relay_now_ms() + kAcceptPauseMs;
        loop_.modify(listener_watch_, 0);
      }
      return;
    }
    if (connections_.size() >= kMaxInbound && !make_room()) {
      close(fd);
      continue;
    }
    if (const Result<Connection*> c = connections_.adopt(fd, Phase::kHandshake); !c.ok()) close(fd);
  }
}

// Over the limit: first goes who has not said who he is for longest, then who has been idle for longest.
bool WriterSide::make_room() {
  const Connection* worst = nullptr;
  connections_.for_each([&](const Connection& c) {
    if (c.phase() == Phase::kReady && busy(c)) return;
    if (worst == nullptr) {
      worst = &c;
      return;
    }
    const bool ready = c.phase() == Phase::kReady;
    const bool worst_ready = worst->phase() == Phase::kReady;
    if (ready != worst_ready ? worst_ready : c.used_ms() < worst->used_ms()) worst = &c;
  });
  if (worst == nullptr) return false;
  connections_.close(worst->id(), Status(StatusCode::kResourceExhausted, "too many connections"));
  return true;
}

Status WriterSide::on_connected(Connection&) { return ok_status(); }

Status WriterSide::on_control(Connection& c, const Header& header, std::span<const std::byte> payload) {
  if (c.phase() == Phase::kHandshake) {
    ASSIGN_OR_RETURN(const bool ready, writer_step(c, self_, header, payload));
    if (ready) {
      c.set_phase(Phase::kReady, relay_now_ms());
      serving_[c.id()];
    }
    return ok_status();
  }
  if (header.type == FrameType::kRequest) return request(c, header, payload);
  if (header.type == FrameType::kRelease) return release(c, header);
  return invalid_argument("a reader sent a {}", frame_type_name(header.type));
}

Status WriterSide::data_begin(Connection&, const Header&) { return invalid_argument("a reader sent a DATA frame"); }
std::size_t WriterSide::data_space(Connection&, std::span<iovec>) { return 0; }
void WriterSide::data_received(Connection&, std::size_t) {}
Status WriterSide::data_end(Connection&, uint64_t) { return ok_status(); }

// ---- what readers ask -----------------------------------------------------------------------------------------------

Status WriterSide::refuse(Connection& c, uint64_t op, uint64_t ticket, StatusCode code) {
  Header header;
  header.type = FrameType::kRefuse;
  header.code = static_cast<uint32_t>(code);
  header.op = op;
  header.ticket = ticket;
  connections_.touch(c);
  return c.send(header);
}

// Without making it again for each frame.
uint64_t WriterSide::known_generation(RelayOp op) const {
  const auto at = offers_.find(op);
  return at == offers_.end() ? generation_of(op) : at->second.generation;
}

Result<WriterSide::Offer*> WriterSide::offer_of(RelayOp op) {
  const auto at = offers_.find(op);
  if (at != offers_.end()) return &at->second;
  const std::shared_ptr<const PutRequest> put = table_.put(op);
  if (put == nullptr) return Status(StatusCode::kInvalidArgument, "the put is over");
  Offer offer;
  offer.generation = generation_of(op);
  for (const SharedBytes& part : put->parts) offer.map.add(part);
  const std::vector<std::size_t> sizes = part_sizes(put->parts);
  Descriptor described;
  describe_sizes(sizes, described);
  offer.sizes_hash = described.sizes_hash;
  offer.destination = put->destination;
  offer.readers = put->readers;
  return &offers_.emplace(op, std::move(offer)).first->second;
}

Status WriterSide::check_request(const Connection& c, const Offer& offer, const Header& header,
                                 const RequestBody& body) const {
  const uint64_t total = offer.map.total();
  const ReaderKey key{c.peer().instance, header.ticket};
  if (!offer.destination.empty() && offer.destination != c.peer().label) {
    return invalid_argument("the put is for another reader");
  }
  if (body.total != total || body.sizes_hash != offer.sizes_hash) {
    return invalid_argument("the sizes of the put are others");
  }
  if (header.offset > total || header.extra > total - header.offset || header.extra > kRangeBytes ||
      (header.extra == 0) != (total == 0)) {
    return invalid_argument("the range [{}, +{}) is not one of {} bytes", header.offset, header.extra, total);
  }
  if (offer.finished.contains(key)) return invalid_argument("the reader has let go of the put");
  if (!offer.reading.contains(key) && offer.reading.size() >= kMaxReadings) {
    return error(StatusCode::kInvalidArgument, "the put has {} readers already", kMaxReadings);
  }
  return ok_status();
}

Status WriterSide::request(Connection& c, const Header& header, std::span<const std::byte> payload) {
  const RelayOp op{header.op};
  Serving& serving = serving_[c.id()];
  if (serving.jobs.size() >= kMaxRangesPerConnection) {
    return invalid_argument("a reader asks for more than {} ranges at once", kMaxRangesPerConnection);
  }
  if (op.value == 0 || header.generation != known_generation(op)) {
    table_.count_bad_frame();
    return refuse(c, header.op, header.ticket, StatusCode::kInvalidArgument);
  }
  const RequestBody body = decode_request(payload.first<kRequestBytes>());
  // Pinned, so that the put cannot end between the look and the note.
  if (!table_.pin(op)) return refuse(c, header.op, header.ticket, StatusCode::kInvalidArgument);
  const Result<Offer*> found = offer_of(op);
  const Status fits = found.ok() ? check_request(c, **found, header, body) : found.status();
  table_.unpin(op);
  if (!fits.ok()) return refuse(c, header.op, header.ticket, fits.code());
  c.begin_use(relay_now_ms());
  Reading& reading = (*found)->reading[{c.peer().instance, header.ticket}];
  if (serving.asked.insert({op.value, header.ticket}).second) ++reading.connections;
  reading.lost_since = -1;
  serving.jobs.push_back({op.value, header.ticket, header.offset, header.offset + header.extra,
                          options_.checksum || (header.flags & kFlagChecksum) != 0});
  connections_.touch(c);
  return ok_status();
}

Status WriterSide::release(Connection& c, const Header& header) {
  const RelayOp op{header.op};
  if (op.value == 0 || header.generation != known_generation(op)) {
    table_.count_bad_frame();
    return ok_status();
  }
  const auto at = offers_.find(op);
  if (at == offers_.end()) return ok_status();
  const ReaderKey key{c.peer().instance, header.ticket};
  if (!at->second.reading.contains(key)) return ok_status();
  forget_reader(op.value, key);
  if (header.code == 0) {
    finish_reader(op, at->second, key, ok_status());
  } else {
    at->second.reading.erase(key);  // it may be got again
  }
  return ok_status();
}

// Nothing more is sent for that get.
void WriterSide::forget_reader(uint64_t op, const ReaderKey& key) {
  connections_.for_each([&](const Connection& c) {
    if (c.peer().instance != key.first) return;
    const auto at = serving_.find(c.id());
    if (at == serving_.end() || at->second.asked.erase({op, key.second}) == 0) return;
    std::erase_if(at->second.jobs, [&](const Job& job) { return job.op == op && job.ticket == key.second; });
  });
}

void WriterSide::finish_reader(RelayOp op, Offer& offer, const ReaderKey& key, const Status& status) {
  offer.reading.erase(key);
  offer.finished.insert(key);
  if (!status.ok()) offer.worst = status;
  if (offer.finished.size() < static_cast<std::size_t>(offer.readers)) return;
  table_.end_put(op, offer.worst);
}

void WriterSide::put_ended(RelayOp op, StatusCode code) {
  offers_.erase(op);
  connections_.for_each([&](Connection& c) {
    const auto at = serving_.find(c.id());
    if (at == serving_.end()) return;
    Serving& serving = at->second;
    std::erase_if(serving.jobs, [&](const Job& job) { return job.op == op.value; });
    const auto first = serving.asked.lower_bound({op.value, 0});
    const auto last = serving.asked.upper_bound({op.value, UINT64_MAX});
    for (auto it = first; it != last; ++it) {
      // A queue that is full belongs to a peer that reads nothing; time ends it.
      (void)refuse(c, op.value, it->second, code == StatusCode::kOk ? StatusCode::kInvalidArgument : code);
    }
    serving.asked.erase(first, last);
  });
}

// ---- sending --------------------------------------------------------------------------------------------------------

bool WriterSide::next_data(Connection& c, OutgoingFrame& frame) {
  const auto at = serving_.find(c.id());
  if (at == serving_.end()) return false;
  Serving& serving = at->second;
  while (!serving.jobs.empty()) {
    Job job = serving.jobs.front();
    serving.jobs.pop_front();
    if (start_frame(serving, job, frame)) return true;
  }
  return false;
}

bool WriterSide::start_frame(Serving& serving, Job& job, OutgoingFrame& frame) {
  const RelayOp op{job.op};
  const auto offer = offers_.find(op);
  if (offer == offers_.end() || !table_.pin(op)) {
    // It ends this very moment, and put_ended() tells the reader.
    return false;
  }
  const PartMap& map = offer->second.map;
  Header header;
  header.type = FrameType::kData;
  header.length = static_cast<uint32_t>(std::min<uint64_t>(job.end - job.offset, kFrameBytes));
  header.op = job.op;
  header.generation = offer->second.generation;
  header.ticket = job.ticket;
  header.offset = job.offset;
  if (job.checksum) header.flags = kFlagChecksum;
  frame.start(header, &map, op, [this, op] { table_.unpin(op); });
  job.offset += header.length;
  if (job.offset < job.end) serving.jobs.push_back(job);
  return true;
}

void WriterSide::release_ended() {
  connections_.for_each([this](Connection& c) {
    OutgoingFrame& frame = c.frame();
    if (!frame.attached()) return;
    const RelayOp op = frame.op();
    if (table_.pin(op)) {
      table_.unpin(op);
    } else {
      frame.detach();
    }
  });
}

bool WriterSide::busy(const Connection& c) const {
  const auto at = serving_.find(c.id());
  return at != serving_.end() && !at->second.asked.empty();
}

// ---- ends -----------------------------------------------------------------------------------------------------------

void WriterSide::on_lost(Connection& c, const Status& why) {
  LOG_DEBUG("relay tcp: a reader's connection ended: {}", why.message());
  c.frame().finish();
  const auto at = serving_.find(c.id());
  if (at == serving_.end()) return;
  const int64_t now_ms = relay_now_ms();
  for (const auto& [op, ticket] : at->second.asked) {
    const auto offer = offers_.find(RelayOp{op});
    if (offer == offers_.end()) continue;
    const auto reading = offer->second.reading.find({c.peer().instance, ticket});
    if (reading == offer->second.reading.end()) continue;
    if (--reading->second.connections == 0) reading->second.lost_since = now_ms;
  }
  serving_.erase(at);
}

void WriterSide::check_lost(int64_t now_ms, int64_t& due_ms) {
  std::vector<std::pair<RelayOp, ReaderKey>> gone;
  for (const auto& [op, offer] : offers_) {
    for (const auto& [key, reading] : offer.reading) {
      if (reading.lost_since < 0) continue;
      const int64_t until = reading.lost_since + std::min(options_.silent_ms, kReaderReturnMs);
      if (now_ms >= until) {
        gone.emplace_back(op, key);
      } else {
        due_ms = std::min(due_ms, until);
      }
    }
  }
  for (const auto& [op, key] : gone) {
    const auto at = offers_.find(op);
    if (at == offers_.end()) continue;
    finish_reader(op, at->second, key, Status(StatusCode::kUnavailable, "the reader of the put is gone"));
  }
}

int64_t WriterSide::check_time(int64_t now_ms) {
  int64_t due_ms = connections_.check_time(now_ms);
  check_lost(now_ms, due_ms);
  if (accept_again_ms_ != 0) {
    if (now_ms >= accept_again_ms_) {
      accept_again_ms_ = 0;
      loop_.modify(listener_watch_, EPOLLIN);
    } else {
      due_ms = std::min(due_ms, accept_again_ms_);
    }
  }
  return due_ms;
}

}  // namespace millrace::tcp
