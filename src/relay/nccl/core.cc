#include "relay/nccl/core.h"

#include <cstring>

#include "base/rng.h"
#include "relay/session/frame.h"

namespace millrace::nccl {

uint64_t key_of(const InstanceId& instance) {
  return session::load_u64(reinterpret_cast<const std::byte*>(instance.random.data())) | 1;
}

Core::Core(const RelayOptions& given, const Api& functions, int ordinal)
    : options(given),
      api(functions),
      device(ordinal),
      key(key_of(instance)),
      table(given, [this](RelayOp op, bool is_put, const Status&) {
        if (is_put) {
          std::lock_guard lock(mutex_);
          offers_.erase(op);
        }
        return true;  // nobody but a link reads the bytes, and it holds the put pinned while it does
      }) {}

// Not to be guessed from the op.
uint64_t Core::generation_of(RelayOp op) const {
  uint64_t seed = 0;
  std::memcpy(&seed, instance.random.data() + sizeof(seed), sizeof(seed));
  const PhiloxBlock block = philox(seed, op.value);
  return (uint64_t{block[0]} << 32) | block[1];
}

void Core::offer(Offer offer) {
  std::lock_guard lock(mutex_);
  const RelayOp op = offer.name.op;
  offers_.emplace(op, std::move(offer));
}

Result<std::shared_ptr<const Layout>> Core::claim(const PutName& name, const std::string& reader) {
  std::lock_guard lock(mutex_);
  const auto at = offers_.find(name.op);
  if (at == offers_.end() || at->second.name.generation != name.generation) {
    return invalid_argument("the descriptor's put is over");
  }
  Offer& offer = at->second;
  if (offer.name.bytes != name.bytes || offer.name.sizes_hash != name.sizes_hash) {
    return invalid_argument("the sizes of the parts are not those of the put");
  }
  if (!offer.destination.empty() && offer.destination != reader) {
    return invalid_argument("the put is for another reader");
  }
  if (offer.unclaimed == 0) return invalid_argument("all readers of the put have come already");
  --offer.unclaimed;
  return offer.layout;
}

void Core::release(RelayOp put, bool has_all) {
  {
    std::lock_guard lock(mutex_);
    const auto at = offers_.find(put);
    if (at == offers_.end()) return;
    if (!has_all) {
      ++at->second.unclaimed;
      return;
    }
    if (--at->second.unreleased > 0) return;
  }
  (void)table.end_put(put, ok_status());
}

}  // namespace millrace::nccl
