// Reading and checking the fields that the generating endpoints share. Every message names the field, the value seen
// and the value wanted. Unknown fields are ignored; fields that would change the answer and are not implemented are
// refused.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/error.h"
#include "base/json.h"
#include "stages/engine.h"

namespace millrace::api {

inline constexpr int64_t kMaxTopK = int64_t{1} << 30;
inline constexpr std::size_t kMaxBodyValues = 512u << 10;  // members and elements of one body, a prompt's ids included
inline constexpr std::size_t kMaxBodyContainers = 16u << 10;  // arrays and objects of one body

// What both generating endpoints read besides their prompt.
struct CommonFields {
  wire::SamplingParams sampling;
  std::optional<int32_t> max_tokens;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  std::string cache_salt;
};

// A body that parses to an object of bounded size, or the reason why not.
Result<Json> parse_body(const std::string& body);

// kNotFound when `model` is given and is not the served one; absent means the served one.
Status check_model(const Json& body, const ModelFacts& model);

// kInvalidArgument or kUnsupported with the field's name first in the message.
Result<CommonFields> read_common(const Json& body, const ModelFacts& model);

// An integer field within [low, high]; absent leaves `out` empty.
Status read_integer(const Json& body, std::string_view key, int64_t low, int64_t high, std::optional<int64_t>& out);

// 400, or 404 with code model_not_found.
ApiError field_error(const Status& status);

}  // namespace millrace::api
