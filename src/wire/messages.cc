#include "wire/messages.h"

namespace millrace::wire {

const char* stage_state_name(StageState state) {
  static constexpr const char* kNames[] = {"loading", "ready", "stalled", "failed", "draining"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace millrace::wire
