#include "control/frame.h"

#include <fmt/format.h>

#include "control/counters.h"
#include "wire/codec.h"
#include "wire/other_version.h"

namespace millrace {

std::optional<wire::Message> decode_frame(std::span<const char> frame, std::string_view peer) {
  Result<wire::Message> message = wire::decode(frame);
  if (message.ok()) return std::move(message).value();
  if (std::optional<wire::OtherVersionFrame> other = wire::read_other_version(frame)) {
    count_other_version(other->version, fmt::format("{}{}{}", other->stage, peer.empty() ? "" : "@", peer));
    if (other->registration) return std::move(*other->registration);
    return std::nullopt;
  }
  count(frame.empty() ? BadFrame::kEmpty : BadFrame::kMalformed, message.status().message());
  return std::nullopt;
}

}  // namespace millrace
