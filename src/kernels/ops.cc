// The choice of an implementation at run time.
#include "kernels/ops.h"

#include <cstdlib>

#include "base/cpu_info.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ref/ref_ops.h"

namespace millrace::kernels {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kRef:
      return "ref";
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
  }
  return "?";
}

bool isa_available(Isa isa) {
  if (isa != Isa::kAvx2) return true;
#if defined(__x86_64__)
  const CpuInfo& cpu = cpu_info();
  return cpu.avx2 && cpu.fma && cpu.f16c;
#else
  return false;
#endif
}

Result<Isa> resolve_isa() {
  const char* forced = std::getenv("MILLRACE_ISA");
  if (forced != nullptr && *forced != '\0') {
    for (Isa isa : {Isa::kRef, Isa::kGeneric, Isa::kAvx2}) {
      if (isa_name(isa) != forced) continue;
      if (isa_available(isa)) return isa;
      return error(StatusCode::kUnsupported, "MILLRACE_ISA is '{}', which this processor ({}) cannot run", forced,
                   cpu_info().brand);
    }
    return invalid_argument("MILLRACE_ISA is '{}'; wanted ref, generic or avx2", forced);
  }
  return isa_available(Isa::kAvx2) ? Isa::kAvx2 : Isa::kGeneric;
}

std::unique_ptr<Ops> make_ops(Isa isa, ThreadPool& pool) {
  CHECK(isa_available(isa));
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return make_cpu_ops(isa_name(isa), kAvx2Kernels, pool);
#endif
  if (isa == Isa::kGeneric) return make_cpu_ops(isa_name(isa), kGenericKernels, pool);
  return make_ref_ops();
}

Result<std::unique_ptr<Ops>> make_ops(ThreadPool& pool) {
  ASSIGN_OR_RETURN(const Isa isa, resolve_isa());
  return make_ops(isa, pool);
}

}  // namespace millrace::kernels
