// Token ids in the payloads of pipelines: an I32 tensor of one dimension under the key "ids"; a client that asks by
// JSON may write a list of integers. And how the options of a request's text travel beside them. Thread safety: free
// functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "payload/value.h"
#include "wire/generation.h"

namespace millrace {

inline constexpr std::string_view kIdsKey = "ids";
inline constexpr std::string_view kDetokenizeKey = "detokenize";

SharedTensor ids_tensor(std::span<const int32_t> ids);
// kInvalidArgument: `map` is no map, has no ids, or they are neither an I32 tensor [n] nor a list of 32-bit integers.
Result<std::vector<int32_t>> ids_of(const Value& map);

// The options as a map, or null where all are the defaults: then nothing travels.
Value detokenize_options(const wire::DetokenizeStart& start);
// From the map under kDetokenizeKey; the defaults where there is none. kInvalidArgument names the option.
Result<wire::DetokenizeStart> read_detokenize_options(const Value& map);

// What a generated text's payload holds of it: "ids", "finish_reason", "matched_stop", "usage".
void set_result(Value& map, std::span<const int32_t> ids, const wire::Finish& finish, const wire::Usage& usage);

// The entries of `map` but those of `keys`; null where it is no map.
Value without(const Value& map, std::initializer_list<std::string_view> keys);

}  // namespace millrace
