// What the processor and the operating system offer to this process, asked once with CPUID and the scheduler.
// Thread safety: all functions may be called from any thread.
#pragma once

#include <string>

namespace millrace {

struct CpuInfo {
  std::string brand;   // "Intel(R) Xeon(R) Processor", empty where unknown
  std::string vendor;  // "GenuineIntel", "AuthenticAMD", empty where unknown
  // Each flag is true only where the instructions exist and the operating system saves their registers.
  bool avx2 = false;
  bool fma = false;
  bool f16c = false;
  bool avx_vnni = false;  // VPDPBUSD without AVX-512
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx_bf16 = false;
  bool amx_int8 = false;
  int usable_cpus = 1;  // the affinity mask, bounded by the cgroup's CPU quota; at least 1
};

const CpuInfo& cpu_info();

}  // namespace millrace
