// A message between two hosts of a plugin: its sender and receiver, then a frame of the session, and, behind a frame of
// the reading side, the sender's blob: how it is reached.
//
//      0 16 sender   16 16 receiver   32 64 header   96 payload (header.length)   then the blob
//
// Messages may be lost, doubled or overtaken, never cut; the session repeats what has no answer.
//
// Thread safety: values; free functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "relay/session/frame.h"

namespace millrace::plugin {

using Instance = std::array<uint8_t, 16>;

struct Message {
  Instance from{};
  Instance to{};
  session::Header header;
  std::string payload;
  std::string blob;
};

// Only REQUEST and RELEASE have a blob.
bool carries_blob(session::FrameType type);
std::string encode_message(const Message& message);
// kInvalidArgument or kUnsupported for anything else.
Result<Message> decode_message(std::string_view bytes);

}  // namespace millrace::plugin
