#include "relay/plugin/message.h"

#include <cstring>

#include <plugins/relay_plugin.h>

namespace millrace::plugin {
namespace {

using session::FrameType;
using session::kHeaderBytes;

// The longest messages of both kinds fit: a REQUEST with a blob, and a control frame without one.
constexpr std::size_t kHeadBytes = 2 * sizeof(Instance) + kHeaderBytes;
static_assert(kHeadBytes + session::kRequestBytes + MILLRACE_RELAY_MAX_BLOB <= MILLRACE_RELAY_MAX_MESSAGE);
static_assert(kHeadBytes + session::kMaxControlPayload <= MILLRACE_RELAY_MAX_MESSAGE);

}  // namespace

bool carries_blob(FrameType type) { return type == FrameType::kRequest || type == FrameType::kRelease; }

std::string encode_message(const Message& message) {
  CHECK(message.header.length == message.payload.size() && message.blob.size() <= MILLRACE_RELAY_MAX_BLOB);
  // A REQUEST or RELEASE without a blob could not be answered: the writer knows its readers by what they send alone.
  CHECK(carries_blob(message.header.type) != message.blob.empty());
  const session::HeaderBytes head = session::encode(message.header);
  std::string bytes(reinterpret_cast<const char*>(message.from.data()), message.from.size());
  bytes.append(reinterpret_cast<const char*>(message.to.data()), message.to.size());
  bytes.append(reinterpret_cast<const char*>(head.data()), head.size());
  return bytes + message.payload + message.blob;
}

Result<Message> decode_message(std::string_view bytes) {
  if (bytes.size() < kHeadBytes) {
    return invalid_argument("the message has {} bytes; wanted {} or more", bytes.size(), kHeadBytes);
  }
  Message message;
  std::memcpy(message.from.data(), bytes.data(), sizeof(Instance));
  std::memcpy(message.to.data(), bytes.data() + sizeof(Instance), sizeof(Instance));
  const auto head = std::as_bytes(std::span(bytes)).subspan(2 * sizeof(Instance)).first<kHeaderBytes>();
  ASSIGN_OR_RETURN(message.header, session::decode(head));
  // The header's checksum covers neither payload nor blob. The lengths are checked here; what a blob means, the
  // plugin's connect() decides.
  const std::size_t rest = bytes.size() - kHeadBytes;
  const std::size_t blob = rest - std::min<std::size_t>(rest, message.header.length);
  const std::size_t most = carries_blob(message.header.type) ? MILLRACE_RELAY_MAX_BLOB : 0;
  if (rest < message.header.length || blob > most || (most > 0 && blob == 0)) {
    return invalid_argument("the message has {} bytes behind its header, {} of them payload; wanted a blob of {} to {}",
                            rest, message.header.length, most > 0 ? 1 : 0, most);
  }
  message.payload = bytes.substr(kHeadBytes, message.header.length);
  message.blob = bytes.substr(kHeadBytes + message.header.length);
  return message;
}

}  // namespace millrace::plugin
