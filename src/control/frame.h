// One received frame to one message, with every refusal counted by its reason. For control/ alone.
// Thread safety: free functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "wire/messages.h"

namespace millrace {

// nullopt: refused and counted. A Register of another version is counted too, and handed on: the coordinator may refuse
// it in words that its sender reads. `peer`: its sender, for the log, where that is known.
std::optional<wire::Message> decode_frame(std::span<const char> frame, std::string_view peer = {});

}  // namespace millrace
