// An Ops that records a span of each call (base/trace.h) and hands it on. Owned by a runner; used by its compute
// thread.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace millrace {

std::unique_ptr<kernels::Ops> trace_ops(std::unique_ptr<kernels::Ops> ops);

}  // namespace millrace
