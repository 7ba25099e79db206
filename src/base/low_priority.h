// Threads beside the engine's, which must not take its time. Thread safety: the calling thread alone.
#pragma once

namespace millrace {

// Nice 19 from now on, of this thread alone: on Linux a thread has a nice value of its own. `what` names its work in
// the warning where the system refuses.
void run_at_low_priority(const char* what);

}  // namespace millrace
