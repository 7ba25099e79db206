// Ops on the host's processor: cuts each op into parts for the thread pool and calls one ISA's kernels on them.
// Owner and threads: see ops.h. Which part runs where never changes a bit: parts only divide output elements.
#pragma once

#include "kernels/cpu/kernel_table.h"
#include "kernels/ops.h"

namespace millrace::kernels {

// `pool` must outlive the Ops; `name` is a literal.
std::unique_ptr<Ops> make_cpu_ops(std::string_view name, const KernelTable& table, ThreadPool& pool);

}  // namespace millrace::kernels
