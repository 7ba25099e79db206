// Body: what one chunk of a stream carries into a worker or out of it: a value of any shape, or one of the typed deltas
// of generating, which pass for every token and so have no tree and no relay.
//
// Thread safety: values.
#pragma once

#include <variant>

#include "payload/value.h"
#include "wire/generation.h"

namespace millrace {

using Body = std::variant<Value, wire::TokenDelta, wire::TextDelta>;

}  // namespace millrace
