#include "relay/tcp/handshake.h"

#include <cstring>

namespace millrace::tcp {
namespace {

Status unexpected(const Header& header) {
  return invalid_argument("a {} came during the handshake", frame_type_name(header.type));
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Status send_frame(Connection& c, Header header, std::span<const std::byte> payload) {
  header.length = static_cast<uint32_t>(payload.size());
  return c.send(header, payload);
}

Status welcome(Connection& c, const Identity& self, std::span<const std::byte> proof) {
  Header header;
  header.type = FrameType::kWelcome;
  header.op = self.instance;
  return send_frame(c, header, proof);
}

// The writer's half of HELLO. All that it has is the peer's claim until the proof: the transcript covers the nonce, the
// address and both instances, so a claim that was changed on its way fails there.
Status take_hello(Connection& c, const Identity& self, const Header& header, std::span<const std::byte> payload) {
  if (payload.size() < kNonceBytes) {
    return invalid_argument("a HELLO has {} bytes; wanted at least {}", payload.size(), kNonceBytes);
  }
  c.opening().greeted = true;
  c.peer.instance = header.op;
  Transcript& t = c.opening().transcript;
  std::memcpy(t.reader_nonce.data(), payload.data(), kNonceBytes);
  // Bounded by kMaxHelloBytes, see decode(). It is a name for messages and a part of the proof; nothing connects to it.
  const auto address = payload.subspan(kNonceBytes);
  t.reader_address.assign(reinterpret_cast<const char*>(address.data()), address.size());
  t.reader_instance = header.op;
  t.writer_instance = self.instance;
  c.peer.label = t.reader_address;
  // The port of a writer that died may belong to another relay by now. ConnectionSet sends a REFUSE for this error, and
  // the reader ends its gets with the reason.
  if (header.generation != self.instance) {
    return Status(StatusCode::kNotFound, "the reader looks for another instance");
  }
  // Before any proof, so that the error names the cause where one of the two has no secret. It is no protection: a
  // reader that lies here still has to send a PROOF.
  const bool has_secret = (header.flags & kFlagChecksum) != 0;
  if (has_secret != !self.secret.empty()) {
    return error(StatusCode::kUnauthenticated, "the reader has {} secret and we have {}", has_secret ? "a" : "no",
                 self.secret.empty() ? "none" : "one");
  }
  return ok_status();
}

}  // namespace

// Each is kUnavailable: for a get it is the writer that cannot be reached, whatever its reason. `extra` is the writer's
// version: Connection::refuse() puts it into each REFUSE.
Status refusal(const Header& header) {
  switch (static_cast<StatusCode>(header.code)) {
    case StatusCode::kUnsupported:
      return error(StatusCode::kUnavailable, "the writer speaks version {} of the protocol; wanted {}", header.extra,
                   kVersion);
    case StatusCode::kUnauthenticated:
      return Status(StatusCode::kUnavailable, "the writer refuses us: the relays' secrets differ");
    case StatusCode::kNotFound:
      return Status(StatusCode::kUnavailable, "the writer is gone: another instance listens where it was");
    case StatusCode::kResourceExhausted:
      return Status(StatusCode::kUnavailable, "the writer has too many connections");
    default:
      return error(StatusCode::kUnavailable, "the writer refuses the connection: {}",
                   status_code_name(static_cast<StatusCode>(header.code)));
  }
}

Status send_hello(Connection& c, const Identity& self) {
  Transcript& t = c.opening().transcript;
  fill_random(t.reader_nonce);
  t.reader_instance = self.instance;
  t.writer_instance = c.peer.instance;
  t.reader_address = self.address;
  Header header;
  header.type = FrameType::kHello;
  header.flags = self.secret.empty() ? 0 : kFlagChecksum;
  header.op = self.instance;
  header.generation = c.peer.instance;
  // The nonce is sent in the clear. It makes the writer's proof one of this connection: a recorded one does not fit.
  std::string payload(reinterpret_cast<const char*>(t.reader_nonce.data()), t.reader_nonce.size());
  payload += self.address;
  c.opening().greeted = true;
  return send_frame(c, header, bytes_of(payload));
}

Result<bool> reader_step(Connection& c, const Identity& self, const Header& header,
                         std::span<const std::byte> payload) {
  Opening& opening = c.opening();
  Transcript& t = opening.transcript;
  if (header.type == FrameType::kRefuse) return refusal(header);
  // Once: another CHALLENGE would change the transcript under the proof that was sent.
  if (header.type == FrameType::kChallenge && !self.secret.empty() && !opening.challenged) {
    opening.challenged = true;
    CHECK(payload.size() == kNonceBytes);  // decode() takes no CHALLENGE of another length
    std::memcpy(t.writer_nonce.data(), payload.data(), kNonceBytes);
    Header proof;
    proof.type = FrameType::kProof;
    RETURN_IF_ERROR(send_frame(c, proof, prove(self.secret, Prover::kReader, t)));
    return false;
  }
  if (header.type != FrameType::kWelcome) return unexpected(header);
  // Also without a secret: the descriptor names one instance, and what another one sends must not end up in its get.
  if (header.op != c.peer.instance) {
    return Status(StatusCode::kUnavailable, "the writer is gone: another instance listens where it was");
  }
  if (self.secret.empty()) return true;
  // Without a CHALLENGE before it a WELCOME proves nothing: the writer's nonce would still be zeros.
  if (!opening.challenged || !same_proof(payload, prove(self.secret, Prover::kWriter, t))) {
    return Status(StatusCode::kUnauthenticated, "the writer did not prove that it knows the secret");
  }
  return true;
}

Result<bool> writer_step(Connection& c, const Identity& self, const Header& header,
                         std::span<const std::byte> payload) {
  Opening& opening = c.opening();
  if (header.type == FrameType::kHello && !opening.greeted) {
    RETURN_IF_ERROR(take_hello(c, self, header, payload));
    if (self.secret.empty()) {
      RETURN_IF_ERROR(welcome(c, self, {}));
      return true;
    }
    opening.challenged = true;
    fill_random(opening.transcript.writer_nonce);
    Header challenge;
    challenge.type = FrameType::kChallenge;
    RETURN_IF_ERROR(send_frame(c, challenge, opening.transcript.writer_nonce));
    return false;
  }
  // `challenged` is set only where there is a secret, so a writer without one takes no PROOF.
  if (header.type != FrameType::kProof || !opening.challenged) return unexpected(header);
  if (!same_proof(payload, prove(self.secret, Prover::kReader, opening.transcript))) {
    return Status(StatusCode::kUnauthenticated, "the reader did not prove that it knows the secret");
  }
  // Only now: proving itself first, the writer would make proofs for every peer that connects.
  RETURN_IF_ERROR(welcome(c, self, prove(self.secret, Prover::kWriter, opening.transcript)));
  return true;
}

}  // namespace millrace::tcp
