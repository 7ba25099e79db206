// Strong integer ids. ReqId is unique inside one running instance; two id types never convert into each other.
// Thread safety: values.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace millrace {

template <typename Tag, typename Int = uint64_t>
struct StrongId {
  Int value = 0;
  friend auto operator<=>(StrongId, StrongId) = default;
};

using ReqId = StrongId<struct ReqIdTag>;
using PageId = StrongId<struct PageIdTag, int32_t>;

}  // namespace millrace

template <typename Tag, typename Int>
struct std::hash<millrace::StrongId<Tag, Int>> {
  std::size_t operator()(millrace::StrongId<Tag, Int> id) const noexcept { return std::hash<Int>{}(id.value); }
};
