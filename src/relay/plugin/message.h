// What two hosts of a plugin say to each other. Messages may be lost, doubled or overtaken; each names its get, so a
// repetition changes nothing and nobody's news is taken for another's.
//
//      ask      reader -> writer   may I read this put?     again until answered
//      grant    writer -> reader   yes: here it lies, and this is its checksum
//      refuse   writer -> reader   no, and why
//      release  reader -> writer   I do not read any more   again until acknowledged
//      released writer -> reader
//      ping     either             are you there?
//      pong     either
//
// Fixed, little-endian, 112 bytes, and for an ask the sender's blob after them:
//      0 4 magic "MRPM"   4 1 version   5 1 kind   6 1 status code (refuse)   7 1 zero   8 16 sender   24 16 receiver
//     40 8 get   48 8 put   56 8 generation   64 8 hash of the sizes   72 8 offset   80 8 span   88 8 checksum
//     96 4 bytes of the blob   100 12 zeros
//
// Thread safety: values; free functions without state.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace {

enum class PluginKind : uint8_t { kAsk = 1, kGrant, kRefuse, kRelease, kReleased, kPing, kPong };

using PluginInstance = std::array<uint8_t, 16>;

struct PluginMessage {
  PluginKind kind = PluginKind::kPing;
  StatusCode code = StatusCode::kOk;
  PluginInstance from{};
  PluginInstance to{};
  uint64_t get = 0;
  uint64_t put = 0;
  uint64_t generation = 0;
  uint64_t sizes_hash = 0;
  uint64_t offset = 0;
  uint64_t span = 0;
  uint64_t checksum = 0;
  std::string blob;
};

std::string encode_plugin_message(const PluginMessage& message);
// kInvalidArgument for anything else.
Result<PluginMessage> decode_plugin_message(std::string_view bytes);

}  // namespace millrace
