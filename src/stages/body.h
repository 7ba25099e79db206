// Body: what one chunk of a stream carries into a worker or out of it: a value of any shape, or one of the typed deltas
// of generating, which pass for every token and so have no tree and no relay.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <variant>

#include "payload/value.h"
#include "wire/chunk.h"

namespace millrace {

using Body = std::variant<Value, wire::TokenDelta, wire::TextDelta>;

inline bool is_delta(const Body& body) { return !std::holds_alternative<Value>(body); }
// About the bytes that a delta holds: for limits, not for the wire.
std::size_t size_of_delta(const Body& delta);
// Both take the delta out of what they are given, which has one.
wire::ChunkBody take_delta(Body& body);
Body take_delta(wire::ChunkBody& body);

}  // namespace millrace
