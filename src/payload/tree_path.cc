#include "payload/tree_path.h"

#include <algorithm>

#include "base/utf8.h"
#include "wire/limits.h"

namespace millrace {
namespace {

constexpr std::size_t kShownBytes = 200;  // of a path or name in a message
constexpr std::size_t kFewKeys = 16;      // compared each with each; more are sorted

}  // namespace

std::size_t TreePath::enter_key(std::string_view key) {
  const std::size_t mark = text_.size();
  if (mark) text_ += '.';
  text_ += key;
  return mark;
}

std::size_t TreePath::enter_index(std::size_t index) {
  const std::size_t mark = text_.size();
  text_ += '[';
  text_ += std::to_string(index);
  text_ += ']';
  return mark;
}

std::string TreePath::where() const { return text_.empty() ? "at the root" : "at " + shown(text_); }

std::string shown(std::string_view name) {
  if (name.size() <= kShownBytes) return utf8_repair(name);
  return utf8_repair(utf8_prefix(name, kShownBytes)) + "...";
}

Status check_key(std::string_view key) {
  if (key.size() > wire::kMaxPathBytes) {
    return error(StatusCode::kTooLarge, "a key of {} bytes; wanted at most {}", key.size(), wire::kMaxPathBytes);
  }
  const std::size_t fault = utf8_find_invalid(key);
  if (fault == std::string_view::npos) return ok_status();
  return invalid_argument("byte {:#04x} at offset {} of a key; wanted UTF-8", static_cast<uint8_t>(key[fault]), fault);
}

Status check_unique(const std::vector<std::string_view>& keys) {
  const std::string_view* twice = nullptr;
  std::vector<std::string_view> sorted;
  // Most maps are small: for them the comparisons cost less than the allocation of a copy.
  if (keys.size() <= kFewKeys) {
    for (std::size_t i = 1; i < keys.size() && !twice; ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (keys[i] == keys[j]) twice = &keys[i];
      }
    }
  } else {
    sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    const auto at = std::adjacent_find(sorted.begin(), sorted.end());
    if (at != sorted.end()) twice = &*at;
  }
  if (!twice) return ok_status();
  return invalid_argument("key \"{}\" stands in the map twice; wanted it once", shown(*twice));
}

Result<std::size_t> checked_bytes(const int64_t* extents, std::size_t rank, std::size_t element_bytes) {
  uint64_t elements = 1;
  // The product of the extents that are not 0, so that [2^40, 2^40, 0] is refused although it has no bytes: code that
  // multiplies the extents from the left would overflow.
  uint64_t without_zeros = element_bytes;
  for (std::size_t i = 0; i < rank; ++i) {
    if (extents[i] < 0) return invalid_argument("extent {} of the shape is {}; wanted at least 0", i, extents[i]);
    const auto extent = static_cast<uint64_t>(extents[i]);
    // May wrap, but then the check below refuses the shape.
    elements *= extent;
    if (extent > 0 && without_zeros > wire::kMaxPartBytes / extent) {
      return error(StatusCode::kTooLarge, "a shape of more than {} bytes; wanted at most so many", wire::kMaxPartBytes);
    }
    if (extent > 0) without_zeros *= extent;
  }
  return static_cast<std::size_t>(elements ? without_zeros : 0);
}

}  // namespace millrace
