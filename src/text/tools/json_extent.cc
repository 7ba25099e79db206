#include "text/tools/json_extent.h"

namespace millrace {

JsonExtent::State JsonExtent::push(char byte) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (byte == '\\') {
      escaped_ = true;
    } else if (byte == '"') {
      in_string_ = false;
    }
    return State::kOpen;
  }
  switch (byte) {
    case '"':
      in_string_ = true;
      return depth_ > 0 ? State::kOpen : State::kBroken;
    case '{':
    case '[':
      return open(byte == '[');
    case '}':
    case ']':
      return close(byte == ']');
    default:
      return depth_ > 0 ? State::kOpen : State::kBroken;
  }
}

JsonExtent::State JsonExtent::open(bool is_array) {
  if (depth_ == kJsonMaxDepth) return State::kBroken;
  const uint64_t bit = uint64_t{1} << depth_++;
  arrays_ = is_array ? arrays_ | bit : arrays_ & ~bit;
  return State::kOpen;
}

JsonExtent::State JsonExtent::close(bool is_array) {
  if (depth_ == 0) return State::kBroken;
  const bool was_array = (arrays_ >> --depth_) & 1;
  if (was_array != is_array) return State::kBroken;
  return depth_ == 0 ? State::kComplete : State::kOpen;
}

}  // namespace millrace
