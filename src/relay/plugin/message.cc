#include "relay/plugin/message.h"

#include <cstring>

#include <plugins/relay_plugin.h>

namespace millrace {
namespace {

constexpr char kMagic[4] = {'M', 'R', 'P', 'M'};
constexpr uint8_t kVersion = 1;

struct Head {
  char magic[4];
  uint8_t version, kind, code, zero;
  uint8_t from[16], to[16];
  uint64_t get, put, generation, sizes_hash, offset, span, checksum;
  uint32_t blob_bytes;
  uint8_t zeros[12];
};
static_assert(sizeof(Head) == 112);
static_assert(sizeof(Head) + MILLRACE_RELAY_MAX_BLOB <= MILLRACE_RELAY_MAX_MESSAGE);

}  // namespace

std::string encode_plugin_message(const PluginMessage& message) {
  CHECK(message.blob.size() <= MILLRACE_RELAY_MAX_BLOB);
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.kind = static_cast<uint8_t>(message.kind);
  head.code = static_cast<uint8_t>(message.code);
  std::memcpy(head.from, message.from.data(), sizeof(head.from));
  std::memcpy(head.to, message.to.data(), sizeof(head.to));
  head.get = message.get;
  head.put = message.put;
  head.generation = message.generation;
  head.sizes_hash = message.sizes_hash;
  head.offset = message.offset;
  head.span = message.span;
  head.checksum = message.checksum;
  head.blob_bytes = static_cast<uint32_t>(message.blob.size());
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + message.blob;
}

Result<PluginMessage> decode_plugin_message(std::string_view bytes) {
  Head head;
  if (bytes.size() < sizeof(head)) {
    return invalid_argument("the message has {} bytes; wanted {} or more", bytes.size(), sizeof(head));
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.version != kVersion) {
    return invalid_argument("the message is not of this version of the protocol");
  }
  for (const uint8_t zero : head.zeros) {
    if (zero != 0 || head.zero != 0) return invalid_argument("the message's reserved bytes are not 0");
  }
  const bool is_ask = head.kind == static_cast<uint8_t>(PluginKind::kAsk);
  if (head.kind < 1 || head.kind > static_cast<uint8_t>(PluginKind::kPong)) {
    return invalid_argument("the message's kind is {}", head.kind);
  }
  if (head.code > static_cast<uint8_t>(StatusCode::kInternal)) {
    return invalid_argument("the message's status is {}", head.code);
  }
  if (head.blob_bytes != bytes.size() - sizeof(head) || head.blob_bytes > MILLRACE_RELAY_MAX_BLOB ||
      is_ask != (head.blob_bytes > 0)) {
    return invalid_argument("the message has {} bytes and says that {} are a blob", bytes.size(), head.blob_bytes);
  }
  PluginMessage message;
  message.kind = static_cast<PluginKind>(head.kind);
  message.code = static_cast<StatusCode>(head.code);
  std::memcpy(message.from.data(), head.from, sizeof(head.from));
  std::memcpy(message.to.data(), head.to, sizeof(head.to));
  message.get = head.get;
  message.put = head.put;
  message.generation = head.generation;
  message.sizes_hash = head.sizes_hash;
  message.offset = head.offset;
  message.span = head.span;
  message.checksum = head.checksum;
  message.blob = bytes.substr(sizeof(head));
  return message;
}

}  // namespace millrace
