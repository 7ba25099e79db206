// A fixed prefill and fixed decode steps, made to be counted instead of timed: callgrind counts the instructions of the
// two functions below, the same number on any machine and under any load. `scripts/test --bench` compares the counts
// with bench/counted.txt.
//
//   MILLRACE_ISA=avx2 valgrind --tool=callgrind --collect-atstart=no --toggle-collect=counted_prefill counted MODEL_DIR
//   WHAT
//
// WHAT is "prefill" (256 tokens of one prompt) or "decode" (16 steps of one sequence behind them). One thread, plain
// weights, or quantized ones where QUANTIZE (q8_0, q4_0) follows.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "models/testing/model_testing.h"

using namespace millrace;

namespace {

constexpr int kPrompt = 256;
constexpr int kSteps = 16;

std::vector<int32_t> tokens_of(int first, int count, int vocabulary) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) out.push_back((7919 * (first + i) + 3) % vocabulary);
  return out;
}

Result<std::shared_ptr<const Model>> load(const std::string& directory, const char* quantize, kernels::Isa isa,
                                          ThreadPool& pool) {
  ASSIGN_OR_RETURN(const ModelDir dir, open_model_dir(directory));
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(directory));
  LoadOptions options{.pool = &pool, .isa = isa};
  if (std::strcmp(quantize, "q8_0") == 0) options.quantize = DType::kQ8_0;
  if (std::strcmp(quantize, "q4_0") == 0) options.quantize = DType::kQ4_0;
  return load_model(dir.config, std::make_shared<WeightStore>(std::move(store)), 1, options);
}

}  // namespace

// Names that callgrind finds; never inlined.
extern "C" __attribute__((noinline)) void counted_prefill(SequenceEngine* engine, const std::vector<int32_t>* prompt) {
  std::vector<float> hidden = engine->embed(*prompt);
  engine->forward(hidden, 0);
}
extern "C" __attribute__((noinline)) void counted_decode(SequenceEngine* engine) {
  const int vocabulary = engine->config().vocab_size;
  for (int i = 0; i < kSteps; ++i) (void)engine->logits(tokens_of(kPrompt + i, 1, vocabulary), kPrompt + i);
}

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "counted MODEL_DIR prefill|decode [QUANTIZE]\n"), 2;
  const auto isa = kernels::resolve_isa();
  if (!isa.ok()) return std::fprintf(stderr, "%s\n", isa.status().message().c_str()), 2;
  ThreadPool pool(1);
  const auto model = load(argv[1], argc > 3 ? argv[3] : "", *isa, pool);
  if (!model.ok()) return std::fprintf(stderr, "%s\n", model.status().message().c_str()), 2;
  SequenceEngine engine(*model, *isa, 1, 16, kPrompt + kSteps);
  const std::vector<int32_t> prompt = tokens_of(0, kPrompt, engine.config().vocab_size);
  counted_prefill(&engine, &prompt);
  if (std::strcmp(argv[2], "decode") == 0) counted_decode(&engine);
  return 0;
}
