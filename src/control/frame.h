// One received frame to one message, with every refusal counted by its reason. For control/ alone.
// Thread safety: free functions.
#pragma once

#include <optional>
#include <span>

#include "wire/messages.h"

namespace millrace {

// nullopt: refused and counted.
std::optional<wire::Message> decode_frame(std::span<const char> frame);

}  // namespace millrace
