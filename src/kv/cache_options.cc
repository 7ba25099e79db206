#include "kv/cache_options.h"

#include <array>
#include <string>

namespace millrace {

namespace {

// In the order of the enums.
constexpr std::array<const char*, 7> kStrategies = {"lru", "lfu", "fifo", "mru", "filo", "priority", "slru"};
constexpr std::array<const char*, 3> kPolicies = {"write_through", "write_through_selective", "write_back"};

template <typename Enum, std::size_t kCount>
Result<Enum> parse(std::string_view what, std::string_view name, const std::array<const char*, kCount>& names) {
  std::string wanted;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    wanted += (i == 0 ? "" : i + 1 == kCount ? " or " : ", ") + std::string(names[i]);
  }
  return invalid_argument("{} is '{}'; wanted {}", what, name, wanted);
}

}  // namespace

const char* eviction_strategy_name(EvictionStrategy strategy) {
  return kStrategies[static_cast<std::size_t>(strategy)];
}
const char* write_policy_name(WritePolicy policy) { return kPolicies[static_cast<std::size_t>(policy)]; }

Result<EvictionStrategy> parse_eviction_strategy(std::string_view name) {
  return parse<EvictionStrategy>("the eviction strategy", name, kStrategies);
}

Result<WritePolicy> parse_write_policy(std::string_view name) {
  return parse<WritePolicy>("the write policy", name, kPolicies);
}

Status validate(const CacheOptions& options) {
  if (options.min_load_tokens < 1) {
    return invalid_argument("min_load_tokens is {}; wanted an integer >= 1", options.min_load_tokens);
  }
  return ok_status();
}

}  // namespace millrace
