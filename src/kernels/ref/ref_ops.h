// The scalar oracle: every op as its formula reads, one element at a time, sums in f64 with ascending index, one
// thread. Slow on purpose; faster implementations are tested against it, and MILLRACE_ISA=ref runs a whole model on it.
// Owner and threads: see ops.h.
#pragma once

#include "kernels/ops.h"

namespace millrace::kernels {

std::unique_ptr<Ops> make_ref_ops(Activations activations = Activations::kF32);

}  // namespace millrace::kernels
