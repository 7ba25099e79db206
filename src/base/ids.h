// Strong ids. ReqId is unique inside one running instance; TransferId names a transfer of KV pages between two. Two id
// types never convert into each other.
// Thread safety: values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace millrace {

template <typename Tag, typename Int = uint64_t>
struct StrongId {
  Int value = 0;
  friend auto operator<=>(StrongId, StrongId) = default;
};

using ReqId = StrongId<struct ReqIdTag>;
using PageId = StrongId<struct PageIdTag, int32_t>;

// Text, because a proxy may choose it. Neither made of a request's id nor compared with one.
struct TransferId {
  std::string text;
  friend auto operator<=>(const TransferId&, const TransferId&) = default;
};
inline constexpr std::size_t kMaxTransferIdBytes = 128;
// 1 to kMaxTransferIdBytes letters, digits, '-' or '_'.
inline bool is_transfer_id(std::string_view text) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !text.empty() && text.size() <= kMaxTransferIdBytes && std::all_of(text.begin(), text.end(), fits);
}

}  // namespace millrace

template <typename Tag, typename Int>
struct std::hash<millrace::StrongId<Tag, Int>> {
  std::size_t operator()(millrace::StrongId<Tag, Int> id) const noexcept { return std::hash<Int>{}(id.value); }
};
