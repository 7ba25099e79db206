#include "peaks.h"

#include <sys/mman.h>

#include <cstring>
#include <memory>

#include "base/cpu_info.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "tensor/tensor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::bench {
namespace {

constexpr int64_t kReadBytes = 512 << 20;
constexpr int64_t kChunk = 1 << 20;

void count_flops(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * flops * 1e-9, benchmark::Counter::kIsRate);
}

#if defined(__x86_64__)
constexpr int kRounds = 1000;

// Twelve chains hide the latency of every processor with two units.
__attribute__((target("avx2,fma"))) void fma256(benchmark::State& state) {
  __m256 sums[12];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sums[j] = _mm256_fmadd_ps(sums[j], a, b);
    }
  }
  for (const __m256& sum : sums) benchmark::DoNotOptimize(sum[0]);
  count_flops(state, kRounds * 12.0 * 16);
}

__attribute__((target("avx512f"))) void fma512(benchmark::State& state) {
  __m512 sums[12];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sums[j] = _mm512_fmadd_ps(sums[j], a, b);
    }
  }
  for (const __m512& sum : sums) benchmark::DoNotOptimize(sum[0]);
  count_flops(state, kRounds * 12.0 * 32);
}

// VPDPBUSD: 64 products of bytes and as many additions.
__attribute__((target("avx512f,avx512vnni"))) void vnni512(benchmark::State& state) {
  __m512i sums[12];
  for (int j = 0; j < 12; ++j) sums[j] = _mm512_set1_epi32(j);
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], a, b);
    }
  }
  for (const __m512i& sum : sums) benchmark::DoNotOptimize(_mm512_cvtsi512_si32(sum));
  count_flops(state, kRounds * 12.0 * 128);
}

// VDPBF16PS: 32 products of bf16 and as many additions.
__attribute__((target("avx512f,avx512bf16"))) void bf16_512(benchmark::State& state) {
  __m512 sums[12];
  for (int j = 0; j < 12; ++j) sums[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3f803f80), b = (__m512bh)_mm512_set1_epi32(0x3f003f00);
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < 12; ++j) sums[j] = _mm512_dpbf16_ps(sums[j], a, b);
    }
  }
  for (const __m512& sum : sums) benchmark::DoNotOptimize(_mm512_cvtss_f32(sum));
  count_flops(state, kRounds * 12.0 * 64);
}

// Products of full tiles onto four sums; linear makes three of them for each f32 x.
void tiles_bf16(benchmark::State& state) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
  for (auto _ : state) {
    for (int i = 0; i < kRounds; ++i) {
      __asm__ volatile(
          "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
          "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
    }
  }
  __asm__ volatile("tilerelease" ::);
  count_flops(state, kRounds * 4.0 * 16 * 16 * 32 * 2);
}
#endif

uint64_t add_words(const char* p, int64_t bytes) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i < bytes; i += 64) {
    uint64_t words[8];
    std::memcpy(words, p + i, 64);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

void read(benchmark::State& state, int threads) {
  ThreadPool pool(threads);
  Buffer buffer(kReadBytes);
  (void)madvise(buffer.data(), kReadBytes, MADV_HUGEPAGE);
  std::memset(buffer.data(), 1, kReadBytes);
  const char* from = reinterpret_cast<const char*>(buffer.data());
  for (auto _ : state) {
    pool.parallel_for(kReadBytes / kChunk, 8, [&](int64_t begin, int64_t end, int) {
      benchmark::DoNotOptimize(add_words(from + begin * kChunk, (end - begin) * kChunk));
    });
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kReadBytes * 1e-9, benchmark::Counter::kIsRate);
}

}  // namespace

void register_peaks() {
#if defined(__x86_64__)
  if (kernels::isa_available(kernels::Isa::kAvx2)) benchmark::RegisterBenchmark("peak/fma256", fma256);
  if (kernels::isa_available(kernels::Isa::kAvx512)) benchmark::RegisterBenchmark("peak/fma512", fma512);
  if (kernels::isa_available(kernels::Isa::kAvx512) && cpu_info().avx512_vnni) {
    benchmark::RegisterBenchmark("peak/vnni512", vnni512);
  }
  if (kernels::isa_available(kernels::Isa::kAvx512) && cpu_info().avx512_bf16) {
    benchmark::RegisterBenchmark("peak/bf16_512", bf16_512);
  }
  if (kernels::isa_available(kernels::Isa::kAmx)) benchmark::RegisterBenchmark("peak/tiles_bf16", tiles_bf16);
#endif
  for (int threads : {1, 2}) {
    benchmark::RegisterBenchmark(threads == 1 ? "peak/read/t1" : "peak/read/t2", [threads](benchmark::State& state) {
      read(state, threads);
    })->UseRealTime();
  }
}

}  // namespace millrace::bench
