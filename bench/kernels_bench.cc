// Speed of the kernels: GB/s of weights at one row (decode), GFLOP/s at many rows (prefill), attention in both shapes,
// and the processor's own limits (peak).
// Usage: kernels_bench --benchmark_filter=avx2/BF16. A name is ISA / weights / N x K / rows / threads, or for attention
// ISA / KV dtype / head_dim / stored + new rows / threads.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <tuple>

#include "kernels/cpu/packed.h"
#include "kernels/cpu/panel_linear.h"
#include "kernels/testing/test_data.h"
#include "peaks.h"

namespace millrace::kernels::testing {
namespace {

// Packed weights, in so many copies that a pass over one finds none of it in a cache of usual size. Kept while the same
// ones are asked for: a benchmark runs several times.
const std::vector<Weight>& cold_weights(Isa isa, DType dtype, int64_t n, int64_t k) {
  constexpr std::size_t kColdBytes = 256 << 20;
  static std::tuple<Isa, DType, int64_t, int64_t> held;
  static std::vector<Weight> copies;
  if (!copies.empty() && held == std::tuple(isa, dtype, n, k)) return copies;
  copies.clear();
  held = {isa, dtype, n, k};
  ThreadPool pool(2);
  // One row of random numbers, over and over.
  const Weights row({k}, dtype, 2);
  const std::size_t row_bytes = row.view.size_bytes();
  Buffer bytes(row_bytes * static_cast<std::size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * row_bytes, row.view.data, row_bytes);
  const TensorView source{.data = bytes.data(), .dtype = dtype, .shape = {n, k}};
  do {
    Result<Weight> weight = pack_weight(isa, source, pool);
    CHECK(weight.ok());
    copies.push_back(std::move(weight).value());
  } while (copies.size() * source.size_bytes() < kColdBytes);
  return copies;
}

void linear(benchmark::State& state, Isa isa, DType dtype, int64_t n, int64_t k, int64_t rows, int threads,
            Activations activations) {
  ThreadPool pool(threads);
  const std::unique_ptr<Ops> ops = make_ops(isa, pool, activations);
  Matrix x = Matrix::random(rows, k, 1);
  Matrix y(rows, n);
  const std::vector<Weight>& weights = cold_weights(isa, dtype, n, k);
  std::size_t next = 0;
  for (auto _ : state) {
    ops->linear(x.rows(), weights[next++ % weights.size()], y.rows());
    benchmark::ClobberMemory();
  }
  const double runs = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(runs * static_cast<double>(weights[0].view.size_bytes()) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(runs * 2e-9 * static_cast<double>(rows * n * k), benchmark::Counter::kIsRate);
}

// Quantized weights, packed as a model's load packs them.
void quantized_linear(benchmark::State& state, const PanelTable* table, DType dtype, int64_t n, int64_t k, int64_t rows,
                      int threads) {
  ThreadPool pool(threads);
  PanelLinear linear(*table, pool);
  Matrix x = Matrix::random(rows, k, 1);
  Matrix y(rows, n);
  std::vector<uint8_t> blocks(storage_bytes(dtype, n * k));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<uint8_t>(i * 2654435761u >> 13 & 0x3f);
  const Result<Weight> weight = pack_panels({.data = blocks.data(), .dtype = dtype, .shape = {n, k}}, pool);
  CHECK(weight.ok());
  const CpuProduct product{.weight = &*weight, .y = y.rows()};
  for (auto _ : state) {
    linear.run(ConstRows(x.rows()), {&product, 1});
    benchmark::ClobberMemory();
  }
  const double runs = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(runs * static_cast<double>(weight->size_bytes()) * 1e-9, benchmark::Counter::kIsRate);
  state.counters["GOP/s"] =
      benchmark::Counter(runs * 2e-9 * static_cast<double>(rows * n * k), benchmark::Counter::kIsRate);
}

// Asks for huge pages where the kernel gives them on request.
void advise_huge(Buffer& buffer) {
  const auto begin = reinterpret_cast<std::uintptr_t>(buffer.data());
  const std::uintptr_t first = (begin + 4095) / 4096 * 4096;
  const std::uintptr_t last = (begin + buffer.size_bytes()) / 4096 * 4096;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// Pages as the runner lays them out: aligned, dense, handed out without order.
struct AlignedKv {
  AlignedKv(int64_t head_dim, int64_t length, DType dtype) : paged(16, 8, head_dim, {length}, 1, dtype) {
    layer = paged.layer;
    layer.page_stride_bytes = layer.page_bytes();
    const auto bytes = static_cast<std::size_t>(layer.page_count * layer.page_stride_bytes);
    k = Buffer(bytes);
    v = Buffer(bytes);
    advise_huge(k);
    advise_huge(v);
    std::memset(k.data(), 0, bytes);
    std::memset(v.data(), 0, bytes);
    layer.k = k.data();
    layer.v = v.data();
  }
  PagedKv paged;
  Buffer k, v;
  KvLayer layer;
};

// 8 kv heads, two query heads each; `rows` new rows after `before` stored ones. s/token is the time that one query row
// needs for one position it sees, B/token what that position takes in the pages, GB/s the two together.
void attention(benchmark::State& state, Isa isa, DType dtype, int64_t dim, int64_t before, int64_t rows, int threads) {
  ThreadPool pool(threads);
  const std::unique_ptr<Ops> ops = make_ops(isa, pool);
  AlignedKv kv(dim, before + rows, dtype);
  Matrix k = Matrix::random(before + rows, 8 * dim, 2);
  Matrix q = Matrix::random(rows, 16 * dim, 3);
  Matrix out(rows, 16 * dim);
  const AttentionSequence all{0, before + rows, 0, kv.paged.tables[0]};
  const AttentionSequence step{0, rows, before, kv.paged.tables[0]};
  ops->kv_store(kv.layer, {&all, 1}, k.rows(), k.rows());
  for (auto _ : state) {
    ops->attention(q.rows(), kv.layer, {&step, 1}, {.heads = 16, .scale = 0.125f}, out.rows());
    benchmark::ClobberMemory();
  }
  const double pairs = static_cast<double>(rows) * (static_cast<double>(before) + static_cast<double>(rows + 1) / 2);
  const double all_pairs = static_cast<double>(state.iterations()) * pairs;
  const double bytes = static_cast<double>(2 * kv.layer.page_bytes()) / 16;
  state.counters["GFLOP/s"] =
      benchmark::Counter(all_pairs * 4e-9 * 16 * static_cast<double>(dim), benchmark::Counter::kIsRate);
  state.counters["s/token"] = benchmark::Counter(all_pairs, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["B/token"] = bytes;
  if (rows == 1) state.counters["GB/s"] = benchmark::Counter(all_pairs * bytes * 1e-9, benchmark::Counter::kIsRate);
}

// The same shape: 512 rows of K and V into the pages.
void kv_store(benchmark::State& state, Isa isa, DType dtype) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(isa, pool);
  PagedKv kv(16, 8, 64, {512}, 1, dtype);
  Matrix k = Matrix::random(512, 8 * 64, 2);
  const AttentionSequence all{0, 512, 0, kv.tables[0]};
  for (auto _ : state) {
    ops->kv_store(kv.layer, {&all, 1}, k.rows(), k.rows());
    benchmark::ClobberMemory();
  }
  state.counters["s/token"] = benchmark::Counter(static_cast<double>(state.iterations()) * 512,
                                                 benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void elementwise(benchmark::State& state, Isa isa) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_ops(isa, pool);
  Matrix gate = Matrix::random(1, 3072, 1, 0, 8.0f);
  Matrix y(1, 3072);
  for (auto _ : state) {
    ops->swiglu(gate.rows(), gate.rows(), y.rows());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 3072);
}

// One thread is timed by its CPU time, which a busy machine does not change; several by the wall clock.
template <typename F>
void add(const std::string& name, int threads, F run) {
  auto* bench = benchmark::RegisterBenchmark(fmt::format("{}/t{}", name, threads).c_str(), run);
  if (threads > 1) bench->UseRealTime();
}

// The shapes of Qwen3-0.6B, the last one its vocabulary head.
void register_linear(Isa isa, DType dtype, int threads, Activations activations = Activations::kF32) {
  const std::string type =
      activations == Activations::kF32 ? std::string(dtype_name(dtype)) : fmt::format("{}xBF16", dtype_name(dtype));
  const std::pair<int64_t, int64_t> shapes[] = {{1024, 1024}, {2048, 1024}, {3072, 1024},  {1024, 3072},
                                                {384, 1024},  {1024, 384},  {151936, 1024}};
  for (const auto& [n, k] : shapes) {
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 128, 512}) {
      if (n > 100000 && rows > 16) continue;  // the head sees the rows that are sampled
      add(fmt::format("linear/{}/{}/{}x{}/{}", isa_name(isa), type, n, k, rows), threads,
          [=, n = n, k = k](benchmark::State& s) { linear(s, isa, dtype, n, k, rows, threads, activations); });
    }
  }
}

// q8_0 and q4_0 in the shapes of a small model and as a vocabulary head that no cache holds; the types with blocks of
// 256 in one of them.
void register_quantized(Isa isa, int threads) {
  const PanelTable* table = &panel_table(isa_name(isa));
  for (DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3072, 1024}, {1024, 3072}, {65536, 1024}}) {
      for (int64_t rows : {1, 4, 16, 128, 512}) {
        if (n == 65536 && rows > 16) continue;
        add(fmt::format("linear/{}/{}/{}x{}/{}", isa_name(isa), dtype_name(dtype), n, k, rows), threads,
            [=, n = n, k = k](benchmark::State& s) { quantized_linear(s, table, dtype, n, k, rows, threads); });
      }
    }
  }
}

void register_attention(Isa isa, int threads) {
  for (int64_t dim : {64, 128}) {
    for (const auto& [before, rows] :
         {std::pair<int64_t, int64_t>{0, 512}, {0, 2048}, {16383, 1}, {2047, 1}, {1023, 1}, {127, 1}}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        add(fmt::format("attention/{}/{}/{}/{}+{}", isa_name(isa), dtype_name(dtype), dim, before, rows), threads,
            [=, before = before, rows = rows](benchmark::State& s) {
              attention(s, isa, dtype, dim, before, rows, threads);
            });
      }
    }
  }
}

void register_all() {
  for (Isa isa : available_isas()) {
    if (isa == Isa::kRef) continue;
    for (int threads : {1, 2}) {
      for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) register_linear(isa, dtype, threads);
      register_linear(isa, DType::kBF16, threads, Activations::kBF16);
      register_quantized(isa, threads);
      register_attention(isa, threads);
    }
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
      add(fmt::format("kv_store/{}/{}", isa_name(isa), dtype_name(dtype)), 1,
          [=](benchmark::State& s) { kv_store(s, isa, dtype); });
    }
    add(fmt::format("swiglu/{}", isa_name(isa)), 1, [=](benchmark::State& s) { elementwise(s, isa); });
  }
}

}  // namespace
}  // namespace millrace::kernels::testing

int main(int argc, char** argv) {
  millrace::bench::register_peaks();
  millrace::kernels::testing::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
