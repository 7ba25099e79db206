// The items of a request to /v1/responses, with what it refers to of stored ones (api/response_store.h).
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "api/response_store.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::api {

// What a request refers to.
struct StoredInput {
  StoredResponsePtr before;  // previous_response_id
  std::string items;         // its own items as a JSON array, for the store: each with an id and its content as parts
};

// Puts the items of previous_response_id before those of body["input"], and items in the place of references to them.
// kInvalidArgument: an id that the store does not have, or a conversation, or items that are referred to, over
// kMaxConversationBytes.
Result<StoredInput> resolve_stored_input(Json& body, const ResponseStore& store, int64_t now_s);

// Bytes of what it refers to; a body that is none of this endpoint's refers to nothing.
std::size_t bytes_referred_to(const Json& body, const ResponseStore& store, int64_t now_s);

// All items that a response answers, those of earlier ones included.
nlohmann::ordered_json input_items(const StoredResponse& response);

}  // namespace millrace::api
