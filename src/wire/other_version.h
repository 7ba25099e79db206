// A frame of another version of the wire protocol, as far as it can be understood all the same: enough to know its
// sender, and to refuse a peer that wants to join with a message that it can read. docs/wire-protocol.md describes
// what no version changes.
//
// Thread safety: free function without state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "wire/messages.h"

namespace millrace::wire {

struct OtherVersionFrame {
  uint64_t version = 0;
  std::string stage;  // the sender; empty: the frame does not contain it
  // One that wants to join: what a refusal needs is filled in (self's stage, replica and incarnation; reply_to), and
  // wire_version.
  std::optional<Register> registration;
};

// nullopt: a frame of our version, or none that begins as all versions do. Guesses from hostile bytes are bounded: a
// stage's name is one, and a reply_to is no longer than an endpoint may be.
std::optional<OtherVersionFrame> read_other_version(std::span<const char> frame);

}  // namespace millrace::wire
