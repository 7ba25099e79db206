// oneDNN's products of the shapes that kernels_bench measures, for its figures to stand beside: bf16 and int8 matrices,
// int8 without the scales of blocks that quantized weights have. Built where oneDNN is installed (libdnnl-dev). Usage:
// OMP_NUM_THREADS=2 OMP_PLACES=cores onednn_bench --benchmark_filter=bf16. A name is type / N x K / rows.
#include <benchmark/benchmark.h>

#include <cstring>
#include <dnnl.hpp>
#include <random>
#include <string>
#include <vector>

namespace millrace::bench {
namespace {

using Type = dnnl::memory::data_type;
using Layout = dnnl::memory::format_tag;

// Random bytes that are a finite number in each type.
void fill(const dnnl::memory& memory) {
  std::mt19937 random(1);
  auto* bytes = static_cast<unsigned char*>(memory.get_data_handle());
  for (std::size_t i = 0; i < memory.get_desc().get_size(); ++i)
    bytes[i] = static_cast<unsigned char>(random() & (i % 2 ? 0x3f : 0xff));
}

// y [rows, n] = x [rows, k] * w [k, n], w in the layout that oneDNN prefers, laid out beforehand as a model's load
// does.
void product(benchmark::State& state, Type x_type, Type w_type, Type y_type, int64_t n, int64_t k, int64_t rows) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const dnnl::memory::desc x_desc({rows, k}, x_type, Layout::ab);
  const dnnl::memory::desc y_desc({rows, n}, y_type, Layout::ab);
  const dnnl::matmul::desc wanted(x_desc, dnnl::memory::desc({k, n}, w_type, Layout::any), y_desc);
  const dnnl::matmul::primitive_desc chosen(wanted, engine);
  const dnnl::matmul multiply(chosen);
  const dnnl::memory x(x_desc, engine), w(chosen.weights_desc(), engine), y(y_desc, engine);
  fill(x);
  fill(w);
  for (auto _ : state) {
    multiply.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
    stream.wait();
  }
  state.counters["GOP/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * 2e-9 * static_cast<double>(rows * n * k), benchmark::Counter::kIsRate);
  state.SetLabel(chosen.impl_info_str());
}

void add(const std::string& type, Type x, Type w, Type y) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1024, 1024}, {2048, 1024}, {3072, 1024}, {1024, 3072}}) {
    for (int64_t rows : {1, 16, 128, 512}) {
      const std::string name = type + "/" + std::to_string(n) + "x" + std::to_string(k) + "/" + std::to_string(rows);
      benchmark::RegisterBenchmark(name.c_str(), [=, n = n, k = k](benchmark::State& state) {
        product(state, x, w, y, n, k, rows);
      })->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  using millrace::bench::add;
  using millrace::bench::Type;
  add("f32", Type::f32, Type::f32, Type::f32);
  add("bf16", Type::bf16, Type::bf16, Type::f32);
  add("int8", Type::s8, Type::s8, Type::s32);
  add("uint8 x int8", Type::u8, Type::s8, Type::s32);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
