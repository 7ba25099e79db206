#include "base/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace millrace {
namespace {

#if defined(__x86_64__)
struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

bool bit(uint32_t word, int index) { return (word >> index) & 1; }

// XCR0: which register files the operating system saves. Inline assembly, because the intrinsic needs -mxsave.
uint64_t saved_state_mask() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

// Leaves and bits: Intel SDM volume 2A, CPUID; volume 1 section 13.1 for XCR0.
void read_features(CpuInfo& info) {
  const Registers one = cpuid(1);
  if (!bit(one.c, 27)) return;  // OSXSAVE: without it XGETBV does not exist
  const uint64_t saved = saved_state_mask();
  const bool ymm = (saved & 0x6) == 0x6;
  const bool zmm = ymm && (saved & 0xE0) == 0xE0;
  const bool tiles = (saved & 0x60000) == 0x60000;
  const Registers seven = cpuid(7);
  info.fma = ymm && bit(one.c, 12);
  info.f16c = ymm && bit(one.c, 29);
  info.avx2 = ymm && bit(one.c, 28) && bit(seven.b, 5);
  const Registers more = cpuid(7, 1);
  info.avx_vnni = info.avx2 && bit(more.a, 4);
  info.avx512f = zmm && bit(seven.b, 16);
  info.avx512bw = zmm && bit(seven.b, 30);
  info.avx512vl = zmm && bit(seven.b, 31);
  info.avx512dq = zmm && bit(seven.b, 17);
  info.avx512_vnni = zmm && bit(seven.c, 11);
  info.avx512_bf16 = zmm && bit(more.a, 5);
  info.amx_bf16 = tiles && bit(seven.d, 22);
  info.amx_int8 = tiles && bit(seven.d, 25);
}

// Its twelve letters lie in EBX, EDX and ECX, in this order.
std::string read_vendor() {
  const Registers zero = cpuid(0);
  const uint32_t words[3] = {zero.b, zero.d, zero.c};
  char text[sizeof words + 1] = {};
  std::memcpy(text, words, sizeof words);
  return text;
}

std::string read_brand() {
  if (static_cast<uint32_t>(__get_cpuid_max(0x80000000u, nullptr)) < 0x80000004u) return {};
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Registers r = cpuid(0x80000002u + i);
    const uint32_t words[4] = {r.a, r.b, r.c, r.d};
    std::memcpy(text + 16 * i, words, sizeof words);
  }
  std::string brand(text);
  const std::size_t first = brand.find_first_not_of(' ');
  return first == std::string::npos ? std::string() : brand.substr(first, brand.find_last_not_of(' ') - first + 1);
}
#endif

// cgroup v2 writes "max 100000" or "<quota> <period>" in microseconds. Rounded up: half a CPU still runs one thread.
int quota_cpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, 1 << 16));
}

int count_usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = 0;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = CPU_COUNT(&set);
  if (cpus <= 0) cpus = static_cast<int>(std::thread::hardware_concurrency());
  if (const int quota = quota_cpus(); quota > 0) cpus = std::min(cpus, quota);
  return std::max(cpus, 1);
}

}  // namespace

const CpuInfo& cpu_info() {
  static const CpuInfo info = [] {
    CpuInfo made;
#if defined(__x86_64__)
    made.brand = read_brand();
    made.vendor = read_vendor();
    read_features(made);
#endif
    made.usable_cpus = count_usable_cpus();
    return made;
  }();
  return info;
}

}  // namespace millrace
