// The opening of a connection, both sides: the identity of each, whether we are the ones that the other looks for, and,
// where a secret is set, a proof from each side that it knows it. docs/relay-tcp.md has it as a picture.
//
//   reader                                   writer
//     HELLO nonce, address, instance  ---->
//                                     <----  CHALLENGE nonce          (with a secret)
//     PROOF                           ---->                           (with a secret)
//                                     <----  WELCOME proof
//
// Each function takes one frame, sends what follows from it and returns whether the connection is ready now. Its
// errors: kInvalidArgument: not the frame that was due. kUnauthenticated: no proof. kNotFound: we are not whom it looks
// for. kUnsupported: another version. A REFUSE that came is kUnavailable with its reason.
//
// Owner: none. Thread safety: the loop's thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "relay/tcp/connection.h"

namespace millrace::tcp {

// The reader's side. peer.instance is whom it looks for.
Status send_hello(Connection& c, const Identity& self);
Result<bool> reader_step(Connection& c, const Identity& self, const Header& header, std::span<const std::byte> payload);

// The writer's side. Fills peer: instance, label (its address).
Result<bool> writer_step(Connection& c, const Identity& self, const Header& header, std::span<const std::byte> payload);

// What a REFUSE of the whole connection means to the reader that gets it.
Status refusal(const Header& header);

}  // namespace millrace::tcp
