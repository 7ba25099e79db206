#include <cstring>

#include "relay/nccl/link.h"
#include "relay/session/frame.h"

namespace millrace::nccl {
namespace {

constexpr int64_t kIdleUs = 100'000;
constexpr std::size_t kMaxWhyBytes = 512;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

}  // namespace

Status WriterLink::refuse(uint64_t ticket, const Status& why) {
  return control_.send({.type = FrameType::kRefuse,
                        .code = static_cast<uint16_t>(why.code()),
                        .ticket = ticket,
                        .payload = why.message().substr(0, kMaxWhyBytes)});
}

Status WriterLink::handshake() {
  const int64_t deadline_ms = relay_now_ms() + core_->options.connect_timeout_ms;
  const std::string& secret = core_->options.secret;
  ASSIGN_OR_RETURN(const Frame hello, control_.expect(deadline_ms));
  if (hello.type != FrameType::kHello || hello.payload.size() < session::kNonceBytes) {
    return invalid_argument("a frame of type {} and {} bytes came; wanted a HELLO", static_cast<int>(hello.type),
                            hello.payload.size());
  }
  if (hello.b != core_->key)
    return Status(StatusCode::kNotFound, "the writer is gone: another instance is in its place");
  if ((hello.code != 0) != !secret.empty()) {
    return Status(StatusCode::kUnauthenticated, "one of the two relays has a secret and the other has none");
  }
  std::memcpy(transcript_.reader_nonce.data(), hello.payload.data(), session::kNonceBytes);
  transcript_.reader_instance = hello.a;
  transcript_.writer_instance = core_->key;
  transcript_.reader_address = hello.payload.substr(session::kNonceBytes);
  if (!secret.empty()) {
    session::fill_random(transcript_.writer_nonce);
    RETURN_IF_ERROR(control_.send({.type = FrameType::kChallenge, .payload = text_of(transcript_.writer_nonce)}));
    ASSIGN_OR_RETURN(const Frame proof, control_.expect(deadline_ms));
    if (proof.type != FrameType::kProof ||
        !session::same_proof(bytes_of(proof.payload), session::prove(secret, session::Prover::kReader, transcript_))) {
      return Status(StatusCode::kUnauthenticated, "the relays' secrets differ");
    }
  }
  Frame welcome{.type = FrameType::kWelcome, .payload = {}};
  if (!secret.empty()) welcome.payload = text_of(session::prove(secret, session::Prover::kWriter, transcript_));
  RETURN_IF_ERROR(control_.send(welcome));
  control_.set_patience(kJoinMs);  // the first use of a device takes its time
  UniqueId id;
  RETURN_IF_ERROR(core_->api.cuda("cudaSetDevice", core_->api.cudaSetDevice(core_->device)));
  RETURN_IF_ERROR(core_->api.nccl("ncclGetUniqueId", core_->api.ncclGetUniqueId(&id)));
  RETURN_IF_ERROR(control_.send({.type = FrameType::kJoin, .payload = std::string(id.internal, sizeof(id.internal))}));
  return join(id, 0);
}

Status WriterLink::run() {
  const Status why = serve_all();
  if (why.code() != StatusCode::kUnavailable) (void)refuse(0, why);
  return why;
}

Status WriterLink::serve_all() {
  control_.set_busy(true);
  RETURN_IF_ERROR(handshake());
  control_.set_patience(core_->options.silent_ms);
  while (true) {
    control_.set_busy(!claims_.empty());
    ASSIGN_OR_RETURN(const std::optional<Frame> frame, control_.take(kIdleUs));
    if (!frame) {
      free_device_memory();
    } else if (frame->type == FrameType::kAsk) {
      RETURN_IF_ERROR(on_ask(*frame));
    } else if (frame->type == FrameType::kMore) {
      RETURN_IF_ERROR(on_more(*frame));
    } else if (frame->type == FrameType::kRelease) {
      const auto at = claims_.find(frame->ticket);
      if (at == claims_.end()) continue;  // refused meanwhile
      core_->release(at->second.put, frame->code == 0);
      claims_.erase(at);
    } else {
      return invalid_argument("a frame of type {} came from a reader", static_cast<int>(frame->type));
    }
  }
}

void WriterLink::lost(const Status& why) {
  if (control_.stopped()) return;  // the relay is being closed, which ends all puts
  for (const auto& [ticket, claim] : claims_) {
    (void)core_->table.end(claim.put,
                           error(StatusCode::kUnavailable, "the reader is lost while it reads: {}", why.message()));
  }
}

Status WriterLink::on_ask(const Frame& frame) {
  if (frame.payload.size() != 16 || claims_.count(frame.ticket) > 0 || !claims_.empty()) {
    return invalid_argument("an ASK of {} bytes came for get {} with {} open; wanted 16 bytes, a new get, none open",
                            frame.payload.size(), frame.ticket, claims_.size());
  }
  const auto* numbers = reinterpret_cast<const std::byte*>(frame.payload.data());
  const PutName name{RelayOp{frame.a}, frame.b, session::load_u64(numbers), session::load_u64(numbers + 8)};
  const auto layout = core_->claim(name, transcript_.reader_address);
  if (!layout.ok()) return refuse(frame.ticket, layout.status());
  claims_[frame.ticket] = {name.op, *layout, 0};
  return control_.send({.type = FrameType::kGrant, .ticket = frame.ticket, .payload = (*layout)->device_bits()});
}

Status WriterLink::on_more(const Frame& frame) {
  const auto at = claims_.find(frame.ticket);
  if (at == claims_.end() || frame.a != at->second.next || frame.a >= at->second.layout->total()) {
    return invalid_argument("a reader wants offset {} of get {}, which is not due", frame.a, frame.ticket);
  }
  if (!core_->table.pin(at->second.put)) {
    claims_.erase(at);
    return refuse(frame.ticket, invalid_argument("the descriptor's put is over"));
  }
  const RelayOp put = at->second.put;
  const Status sent = send_piece(frame, at->second);
  if (!sent.ok()) channel_.reset();  // the device may still read the parts
  core_->table.unpin(put);
  return sent;
}

Status WriterLink::send_piece(const Frame& frame, Claim& claim) {
  const std::shared_ptr<const PutRequest> request = core_->table.put(claim.put);
  const Layout& layout = *claim.layout;
  const std::size_t end = layout.piece_end(claim.next);
  const auto slices = layout.slices(claim.next, end);
  const std::byte* from = channel_->staging();
  if (layout.alone(slices.front().part)) {
    from = request->parts[slices.front().part].data() + slices.front().offset;
  } else {
    std::size_t to = 0;
    for (const Layout::Slice& slice : slices) {
      RETURN_IF_ERROR(
          channel_->copy(channel_->staging() + to, request->parts[slice.part].data() + slice.offset, slice.size));
      to += slice.size;
    }
    RETURN_IF_ERROR(channel_->finish_copies());
    RETURN_IF_ERROR(settle(kPieceMs));
  }
  RETURN_IF_ERROR(control_.send({.type = FrameType::kPiece, .ticket = frame.ticket, .a = claim.next, .payload = {}}));
  RETURN_IF_ERROR(channel_->send(from, end - claim.next));
  RETURN_IF_ERROR(settle(kPieceMs));
  claim.next = end;
  return ok_status();
}

}  // namespace millrace::nccl
