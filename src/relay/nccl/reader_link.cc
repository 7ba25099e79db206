#include <cstring>

#include "relay/nccl/link.h"
#include "relay/session/frame.h"

namespace millrace::nccl {
namespace {

constexpr int64_t kIdleUs = 100'000;
constexpr std::size_t kDeviceAlignment = 256;

std::size_t aligned(std::size_t bytes, std::size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

// Where the parts of one get go.
struct ReaderLink::Landing {
  std::vector<SharedBytes> parts;
  std::vector<std::byte*> to;
  bool own = false;  // memory of ours, not the caller's

  static Result<Landing> make(const Api& api, const GetRequest& request, const Layout& layout) {
    Landing landing;
    landing.own = request.destination.empty();
    if (!landing.own) {
      for (const std::span<std::byte> span : request.destination) {
        landing.to.push_back(span.data());
        landing.parts.emplace_back(nullptr, span.data(), span.size());
      }
      return landing;
    }
    std::size_t host = 0, device = 0;
    std::vector<std::size_t> at(layout.parts());
    for (std::size_t i = 0; i < layout.parts(); ++i) {
      std::size_t& used = layout.on_device(i) ? device : host;
      at[i] = used;
      used += aligned(layout.size(i), layout.on_device(i) ? kDeviceAlignment : kBufferAlignment);
    }
    auto host_block = std::make_shared<Buffer>(host);
    std::shared_ptr<void> device_block;
    if (device > 0) {
      ASSIGN_OR_RETURN(device_block, make_device_memory(api, device));
    }
    for (std::size_t i = 0; i < layout.parts(); ++i) {
      const bool cuda = layout.on_device(i);
      std::byte* base = cuda ? static_cast<std::byte*>(device_block.get()) : host_block->data();
      landing.to.push_back(base == nullptr ? nullptr : base + at[i]);
      std::shared_ptr<const void> owner = host_block;
      if (cuda) owner = device_block;
      landing.parts.emplace_back(std::move(owner), landing.to.back(), layout.size(i),
                                 cuda ? Device::kCuda : Device::kHost);
    }
    return landing;
  }
};

bool ReaderLink::push(const Order& order) {
  std::lock_guard lock(mutex_);
  if (dead()) return false;
  orders_.push_back(order);
  control_.wake();
  return true;
}

void ReaderLink::lost(const Status& why) {
  std::deque<Order> orders;
  {
    std::lock_guard lock(mutex_);  // dead() is true: nothing is pushed after this
    orders.swap(orders_);
  }
  if (control_.stopped()) return;  // the relay is being closed, which ends all gets
  for (const Order& order : orders) (void)core_->table.end(order.get, Status(StatusCode::kUnavailable, why.message()));
}

Status ReaderLink::handshake() {
  RETURN_IF_ERROR(control_.finish_connect(core_->options.connect_timeout_ms));
  const int64_t deadline_ms = relay_now_ms() + core_->options.connect_timeout_ms;
  const std::string& secret = core_->options.secret;
  session::fill_random(transcript_.reader_nonce);
  transcript_.reader_instance = core_->key;
  transcript_.writer_instance = writer_;
  transcript_.reader_address = core_->address;
  Frame hello{.type = FrameType::kHello, .code = !secret.empty(), .a = core_->key, .b = writer_, .payload = {}};
  hello.payload.assign(reinterpret_cast<const char*>(transcript_.reader_nonce.data()), session::kNonceBytes);
  hello.payload += core_->address;
  RETURN_IF_ERROR(control_.send(hello));
  Frame frame;
  ASSIGN_OR_RETURN(frame, control_.expect(deadline_ms));
  if (frame.type == FrameType::kChallenge && !secret.empty() && frame.payload.size() == session::kNonceBytes) {
    std::memcpy(transcript_.writer_nonce.data(), frame.payload.data(), session::kNonceBytes);
    const session::Proof proof = session::prove(secret, session::Prover::kReader, transcript_);
    RETURN_IF_ERROR(control_.send({.type = FrameType::kProof,
                                   .payload = std::string(reinterpret_cast<const char*>(proof.data()), proof.size())}));
    ASSIGN_OR_RETURN(frame, control_.expect(deadline_ms));
  }
  const std::size_t wanted = secret.empty() ? 0 : session::kProofBytes;
  if (frame.type != FrameType::kWelcome || frame.payload.size() != wanted) {
    return invalid_argument("a frame of type {} and {} bytes came; wanted a WELCOME of {}",
                            static_cast<int>(frame.type), frame.payload.size(), wanted);
  }
  if (!secret.empty() && !session::same_proof(std::as_bytes(std::span(frame.payload)),
                                              session::prove(secret, session::Prover::kWriter, transcript_))) {
    return Status(StatusCode::kUnauthenticated, "the writer did not prove that it knows the secret");
  }
  control_.set_patience(kJoinMs);  // the first use of a device takes its time
  ASSIGN_OR_RETURN(frame, control_.expect(relay_now_ms() + kJoinMs));
  UniqueId id;
  if (frame.type != FrameType::kJoin || frame.payload.size() != sizeof(id)) {
    return invalid_argument("a frame of type {} and {} bytes came; wanted a JOIN of {}", static_cast<int>(frame.type),
                            frame.payload.size(), sizeof(id));
  }
  std::memcpy(id.internal, frame.payload.data(), sizeof(id));
  return join(id, 1);
}

Status ReaderLink::run() {
  control_.set_busy(true);
  RETURN_IF_ERROR(handshake());
  control_.set_patience(core_->options.silent_ms);
  while (true) {
    std::optional<Order> order;
    {
      std::lock_guard lock(mutex_);
      if (!orders_.empty()) order = orders_.front();
    }
    control_.set_busy(order.has_value());
    if (!order) {
      free_device_memory();
      ASSIGN_OR_RETURN(const std::optional<Frame> frame, control_.take(kIdleUs));
      if (frame) return invalid_argument("a frame of type {} came unasked", static_cast<int>(frame->type));
      continue;
    }
    RETURN_IF_ERROR(serve(*order));
    std::lock_guard lock(mutex_);
    orders_.pop_front();
  }
}

// The answer to what was asked; its time is bounded by the life of the peer.
Result<Frame> ReaderLink::answer(uint64_t ticket) {
  ASSIGN_OR_RETURN(Frame frame, control_.expect(-1));
  if (frame.ticket != ticket) {
    return invalid_argument("an answer for get {} came; wanted one for {}", frame.ticket, ticket);
  }
  return frame;
}

Status ReaderLink::release(const Order& order, StatusCode code) {
  return control_.send(
      {.type = FrameType::kRelease, .code = static_cast<uint16_t>(code), .ticket = order.get.value, .payload = {}});
}

Status ReaderLink::serve(const Order& order) {
  const std::shared_ptr<const GetRequest> request = core_->table.get(order.get);
  if (!request) return ok_status();  // over already
  Frame ask{.type = FrameType::kAsk,
            .ticket = order.get.value,
            .a = order.put.op.value,
            .b = order.put.generation,
            .payload = std::string(16, '\0')};
  auto* numbers = reinterpret_cast<std::byte*>(ask.payload.data());
  session::store_u64(numbers, order.put.bytes);
  session::store_u64(numbers + 8, order.put.sizes_hash);
  RETURN_IF_ERROR(control_.send(ask));
  ASSIGN_OR_RETURN(const Frame frame, answer(order.get.value));
  if (frame.type == FrameType::kRefuse) {
    (void)core_->table.end(order.get, invalid_argument("the writer refuses: {}", frame.payload));
    return ok_status();
  }
  std::optional<std::vector<bool>> on_device = Layout::parse_bits(frame.payload, request->sizes.size());
  if (frame.type != FrameType::kGrant || !on_device) {
    return invalid_argument("a frame of type {} and {} bytes came; wanted a GRANT for {} parts",
                            static_cast<int>(frame.type), frame.payload.size(), request->sizes.size());
  }
  return transfer(order, *request, Layout(request->sizes, std::move(*on_device)));
}

Status ReaderLink::transfer(const Order& order, const GetRequest& request, const Layout& layout) {
  Result<Landing> landing = Landing::make(core_->api, request, layout);
  if (!landing.ok()) {
    RETURN_IF_ERROR(release(order, landing.status().code()));
    (void)core_->table.end(order.get, landing.status());
    return ok_status();
  }
  for (std::size_t at = 0; at < layout.total();) {
    if (!core_->table.get(order.get)) return release(order, StatusCode::kCancelled);
    RETURN_IF_ERROR(control_.send({.type = FrameType::kMore, .ticket = order.get.value, .a = at, .payload = {}}));
    ASSIGN_OR_RETURN(const Frame frame, answer(order.get.value));
    if (frame.type == FrameType::kRefuse) {
      (void)core_->table.end(order.get, invalid_argument("the writer refuses: {}", frame.payload));
      return ok_status();
    }
    if (frame.type != FrameType::kPiece || frame.a != at) {
      return invalid_argument("a frame of type {} with offset {} came; wanted a PIECE with {}",
                              static_cast<int>(frame.type), frame.a, at);
    }
    const std::size_t end = layout.piece_end(at);
    const auto slices = layout.slices(at, end);
    const bool direct = landing->own && layout.alone(slices.front().part);
    RETURN_IF_ERROR(channel_->receive(
        direct ? landing->to[slices.front().part] + slices.front().offset : channel_->staging(), end - at));
    RETURN_IF_ERROR(settle(kPieceMs));
    bool over = false;
    if (!direct) RETURN_IF_ERROR(unpack(order, *landing, slices, over));
    if (over) return release(order, StatusCode::kCancelled);
    at = end;
  }
  // The writer hears of it first, so that a get that has ended has let go.
  RETURN_IF_ERROR(release(order, StatusCode::kOk));
  std::vector<SharedBytes> parts = std::move(landing->parts);
  if (landing->own) parts = core_->table.lend(std::move(parts));
  (void)core_->table.end_get(order.get, std::move(parts));
  return ok_status();
}

// From the staging buffer to where they belong. The get stays pinned: until then it does not end, and the memory is
// ours to write.
Status ReaderLink::unpack(const Order& order, const Landing& landing, const std::vector<Layout::Slice>& slices,
                          bool& over) {
  over = !core_->table.pin(order.get);
  if (over) return ok_status();
  const auto copy_all = [&]() -> Status {
    std::size_t from = 0;
    for (const Layout::Slice& slice : slices) {
      RETURN_IF_ERROR(channel_->copy(landing.to[slice.part] + slice.offset, channel_->staging() + from, slice.size));
      from += slice.size;
    }
    RETURN_IF_ERROR(channel_->finish_copies());
    return settle(kPieceMs);
  };
  const Status copied = copy_all();
  if (!copied.ok()) channel_.reset();  // the device may still write
  core_->table.unpin(order.get);
  return copied;
}

}  // namespace millrace::nccl
