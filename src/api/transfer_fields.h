// kv_transfer_params: a request of which one server computes the prompt and another generates, as a proxy decides
// (docs/disaggregation.md). The names are vLLM's.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <optional>

#include "base/json.h"
#include "base/status.h"
#include "wire/generation.h"

namespace millrace::api {

// nullopt: the body has none. kInvalidArgument names the field, the value seen and the value wanted: also for a field
// that is not known.
Result<std::optional<wire::RemoteKv>> read_kv_transfer(const Json& body);
// One transfer is of one prompt and one text.
Status check_kv_transfer(const std::optional<wire::RemoteKv>& transfer, std::size_t texts);

}  // namespace millrace::api
