#include "stages/weight_control.h"

namespace millrace {

const char* phase_name(WeightsState::Phase phase) {
  static constexpr const char* kNames[] = {"idle", "staging", "switching", "receiving", "staged"};
  return kNames[static_cast<std::size_t>(phase)];
}

}  // namespace millrace
