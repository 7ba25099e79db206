// "The same bits": the logits and tokens of a request do not depend on what else is in the batch, on chunks, parts,
// page sizes, page ids, threads, shared prefixes, order or a split of the layers. Every row of logits is compared with
// memcmp to that of the request alone: whole prompt, one sequence a batch, one thread, pages of 16.
#include <gtest/gtest.h>

#include <cstring>

#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr int kRequests = 32;
constexpr int kBf16Requests = 8;  // of a model that is no tiny one
const std::string kBf16Model = std::string(MILLRACE_SOURCE_DIR) + "/models/demo";

std::vector<TestRequest> make_requests(const ModelConfig& config, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TestRequest> requests(kRequests);
  const int context = std::min(config.max_position_embeddings, 160);
  for (int i = 0; i < kRequests; ++i) {
    TestRequest& request = requests[static_cast<std::size_t>(i)];
    request.new_tokens = 1 + static_cast<int>(random() % 6);
    const int longest = i % 8 == 0 ? context - request.new_tokens : 40;
    const int length = 1 + static_cast<int>(random() % static_cast<unsigned>(longest));
    for (int t = 0; t < length; ++t) {
      request.prompt.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(config.vocab_size)));
    }
    if (i % 4 == 3) {  // a prompt that begins like an earlier one
      const auto& earlier = requests[static_cast<std::size_t>(i - 3)].prompt;
      request.prompt.insert(request.prompt.begin(), earlier.begin(), earlier.end());
      request.prompt.resize(std::min<std::size_t>(request.prompt.size(), static_cast<std::size_t>(context) - 6));
    }
    request.sampling.temperature = i % 2 ? 0.9 : 0.0;
    request.sampling.top_p = i % 3 ? 1.0 : 0.8;
    request.sampling.seed = 1000 + static_cast<uint64_t>(i);
  }
  return requests;
}

void expect_same(const std::vector<TestRequest>& seen, const std::vector<TestRequest>& wanted) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(seen[i].tokens, wanted[i].tokens) << "request " << i;
    ASSERT_EQ(seen[i].logits.size(), wanted[i].logits.size());
    for (std::size_t t = 0; t < wanted[i].logits.size(); ++t) {
      const auto &a = seen[i].logits[t], &b = wanted[i].logits[t];
      ASSERT_EQ(a.size(), b.size());
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << "request " << i << " token " << t;
    }
  }
}

std::vector<TestRequest> run(const std::shared_ptr<const Model>& model, const TestPlan& plan,
                             const std::vector<TestRequest>& requests) {
  TestScheduler scheduler(model, plan, requests);
  const Status status = scheduler.run();
  EXPECT_TRUE(status.ok()) << status.to_string();
  return scheduler.requests();
}

// batch, chunk limit, page size, threads, max_rows, order seed, shared prefixes, ranges
struct Variant {
  int batch, chunk, page, threads, max_rows;
  uint32_t seed;
  bool share;
  int ranges = 1;  // as many as the model has layers at most
};
const Variant kVariants[] = {
    {7, 1 << 20, 16, 1, 512, 0, false}, {32, 1 << 20, 16, 1, 512, 0, false}, {32, 1, 16, 1, 512, 0, false},
    {1, 5, 1, 1, 512, 0, false},        {7, 64, 64, 2, 512, 0, false},       {32, 17, 16, 4, 512, 1, false},
    {32, 1 << 20, 16, 1, 13, 0, false}, {7, 50, 16, 2, 1, 0, false},         {1, 1 << 20, 16, 1, 512, 0, true},
    {32, 1 << 20, 16, 2, 100, 2, true}, {7, 9, 1, 4, 31, 3, true},           {32, 33, 64, 1, 512, 4, true},
    {32, 7, 16, 1, 512, 1, false, 2},   {7, 1, 16, 1, 13, 5, true, 4},       {32, 1 << 20, 16, 2, 31, 6, true, 3},
};

// With bf16 activations fewer requests are run.
void check_variants(const std::string& dir, kernels::Isa isa, std::size_t every, std::size_t first,
                    kernels::Activations activations = kernels::Activations::kF32) {
  auto model = load_model_dir(dir);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  auto requests = make_requests((*model)->config(), 77);
  if (activations == kernels::Activations::kBF16) requests.resize(kBf16Requests);
  TestPlan alone;
  alone.isa = isa;
  alone.activations = activations;
  const auto wanted = run(*model, alone, requests);
  for (std::size_t i = first; i < std::size(kVariants); i += every) {
    const Variant& v = kVariants[i];
    SCOPED_TRACE(fmt::format("{} isa {} variant {}", dir, kernels::isa_name(isa), i));
    TestPlan plan{v.threads, v.page, v.max_rows, v.batch, v.chunk, v.seed, isa};
    plan.ranges = std::min(v.ranges, (*model)->config().layers);
    plan.activations = activations;
    auto varied = requests;
    for (std::size_t r = 3; v.share && r < varied.size(); r += 4) varied[r].share_with = static_cast<int>(r) - 3;
    expect_same(run(*model, plan, varied), wanted);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SameBits, BatchesChunksPagesThreadsPrefixesAndOrder) {
  const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
  ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
  const kernels::Isa isa = kernels::resolve_isa().value();
  for (std::size_t d = 0; d < dirs.size(); ++d) {
    // All variants on the first model, a rotating third of them on the others.
    check_variants(dirs[d], isa, d == 0 ? 1 : 3, d == 0 ? 0 : d % 3);
    if (HasFatalFailure()) return;
  }
}

TEST(SameBits, Bf16ActivationsKeepThePromiseOnEveryInstructionSet) {
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (isa == kernels::Isa::kRef || !kernels::isa_available(isa)) continue;  // ref: as slow as it is plain
    check_variants(kBf16Model, isa, 4, 2, kernels::Activations::kBF16);
    if (HasFatalFailure()) return;
  }
}

// Otherwise the test above would be of nothing new.
TEST(SameBits, Bf16ActivationsAreNotF32) {
  const auto model = load_model_dir(kBf16Model);
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  TestPlan exact{.isa = kernels::resolve_isa().value()};
  TestPlan rounded = exact;
  rounded.activations = kernels::Activations::kBF16;
  auto requests = make_requests((*model)->config(), 77);
  requests.resize(1);
  EXPECT_NE(run(*model, exact, requests)[0].logits, run(*model, rounded, requests)[0].logits);
}

TEST(SameBits, EveryInstructionSetKeepsThePromise) {
  const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
  ASSERT_FALSE(dirs.empty());
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_available(isa)) check_variants(dirs.back(), isa, 4, 1);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace millrace
