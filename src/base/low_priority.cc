#include "base/low_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"

namespace millrace {
namespace {

constexpr int kLowestPriority = 19;

}  // namespace

void run_at_low_priority(const char* what) {
  if (::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowestPriority) != 0) {
    LOG_WARNING("{} at normal priority: steps may take longer meanwhile", what);
  }
}

}  // namespace millrace
