#include "control/frame.h"

#include <fmt/format.h>

#include "control/counters.h"
#include "wire/codec.h"
#include "wire/foreign.h"

namespace millrace {

std::optional<wire::Message> decode_frame(std::span<const char> frame, std::string_view peer) {
  Result<wire::Message> message = wire::decode(frame);
  if (message.ok()) return std::move(message).value();
  if (std::optional<wire::ForeignFrame> foreign = wire::read_foreign(frame)) {
    count_foreign(foreign->version, fmt::format("{}{}{}", foreign->stage, peer.empty() ? "" : "@", peer));
    if (foreign->registration) return std::move(*foreign->registration);
    return std::nullopt;
  }
  count(frame.empty() ? BadFrame::kEmpty : BadFrame::kMalformed, message.status().message());
  return std::nullopt;
}

}  // namespace millrace
