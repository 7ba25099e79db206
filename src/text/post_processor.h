// PostProcessor: the "post_processor" of a tokenizer.json, reduced to what a single sequence needs: ids before and
// after it.
//
// Owner: its Tokenizer. Thread safety: immutable after parse.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace millrace {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;

  // `json` may be null. Errors name the component's type and field; kUnsupported where the sequence appears twice or
  // never.
  static Result<PostProcessor> parse(const Json& json);
};

}  // namespace millrace
