#include "control/frame.h"

#include "control/counters.h"
#include "wire/codec.h"
#include "wire/limits.h"
#include "wire/msgpack.h"

namespace millrace {
namespace {

// A header as ours, but for the version.
bool of_another_version(std::span<const char> frame) {
  wire::MsgpackReader in(frame);
  if (!in.map(wire::kMaxMapEntries).ok()) return false;
  const Result<uint64_t> key = in.unsigned_integer();
  if (!key.ok() || *key != 0) return false;
  const Result<uint64_t> version = in.unsigned_integer();
  return version.ok() && *version != wire::kWireVersion;
}

}  // namespace

std::optional<wire::Message> decode_frame(std::span<const char> frame) {
  Result<wire::Message> message = wire::decode(frame);
  if (message.ok()) return std::move(message).value();
  const BadFrame reason = frame.empty()               ? BadFrame::kEmpty
                          : of_another_version(frame) ? BadFrame::kVersion
                                                      : BadFrame::kMalformed;
  count(reason, message.status().message());
  return std::nullopt;
}

}  // namespace millrace
