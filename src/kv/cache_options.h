// The choices of a cache's operator: which pages go first when pages are needed, and which are copied to the host tier.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace millrace {

// Which unlocked page goes first. Each strategy orders nodes by a tuple, the smallest first; among equals the one
// created first.
enum class EvictionStrategy : uint8_t {
  kLru = 0,       // (last use)
  kLfu = 1,       // (requests that used it, last use)
  kFifo = 2,      // (creation)
  kMru = 3,       // (-last use)
  kFilo = 4,      // (-creation)
  kPriority = 5,  // (largest priority of the requests that inserted it, last use)
  kSlru = 6,      // (used by two requests or more, last use)
};

// When a page is copied to the host tier.
enum class WritePolicy : uint8_t {
  kWriteThrough = 0,           // as soon as it is cached
  kWriteThroughSelective = 1,  // as soon as a second request used it
  kWriteBack = 2,              // when it is evicted from the pool
};

const char* eviction_strategy_name(EvictionStrategy strategy);
const char* write_policy_name(WritePolicy policy);

// "lru", "lfu", "fifo", "mru", "filo", "priority", "slru". kInvalidArgument lists the names.
Result<EvictionStrategy> parse_eviction_strategy(std::string_view name);
// "write_through", "write_through_selective", "write_back". kInvalidArgument lists the names.
Result<WritePolicy> parse_write_policy(std::string_view name);

inline constexpr int32_t kMinLoadTokens = 16;

struct CacheOptions {
  EvictionStrategy eviction = EvictionStrategy::kLru;
  WritePolicy write_policy = WritePolicy::kWriteThrough;  // of no meaning without a host tier
  int32_t min_load_tokens = kMinLoadTokens;               // fewer are computed again rather than copied from the host
  bool events = false;                                    // note down KvEvents (kv/kv_event.h)
};

// kInvalidArgument names the option, the value seen and the value wanted.
Status validate(const CacheOptions& options);

}  // namespace millrace
