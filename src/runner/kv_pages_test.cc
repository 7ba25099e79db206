// The bytes of the pages: their size by dtype, and copies to the host tier and back that lose no bit, alone and through
// a runner that goes on with what came back.
#include "runner/kv_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "runner/testing/runner_testing.h"

namespace millrace {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};
constexpr int32_t kPageSize = 4;

PageCopy to_host(int32_t page, int32_t host_page) { return {CopyDirection::kToHost, PageId{page}, PageId{host_page}}; }
PageCopy from_host(int32_t host_page, int32_t page) {
  return {CopyDirection::kFromHost, PageId{page}, PageId{host_page}};
}

class KvPagesTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto dirs = golden_model_dirs(MILLRACE_SOURCE_DIR);
    ASSERT_FALSE(dirs.empty()) << "no tests/golden/models/tiny_*";
    auto model = load_model_dir(dirs.front());
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    options_ = {.page_size = kPageSize, .page_count = 6, .host_page_count = 3, .poison = true};
  }
  LayerRange all() const { return {0, model_->config().layers}; }
  KvPages make() { return KvPages::make(model_->config(), all(), options_).value(); }

  // The bytes of a page: K and V of every layer.
  static std::string page_of(const KvPages& pages, int32_t page) {
    std::string bytes;
    for (const kernels::KvLayer& layer : pages.layers()) {
      for (const void* side : {layer.k, layer.v}) {
        bytes.append(static_cast<const char*>(side) + page * layer.page_stride_bytes,
                     static_cast<std::size_t>(layer.page_bytes()));
      }
    }
    return bytes;
  }
  static void set_page(KvPages& pages, int32_t page, const std::string& bytes) {
    const char* from = bytes.data();
    for (const kernels::KvLayer& layer : pages.layers()) {
      for (void* side : {layer.k, layer.v}) {
        std::memcpy(static_cast<char*>(side) + page * layer.page_stride_bytes, from,
                    static_cast<std::size_t>(layer.page_bytes()));
        from += layer.page_bytes();
      }
    }
  }
  std::string random_page() {
    std::string bytes(static_cast<std::size_t>(kv_page_bytes(model_->config(), all(), kPageSize, options_.dtype)), 0);
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }

  std::shared_ptr<const Model> model_;
  KvPagesOptions options_;
  std::mt19937 random_{5};
};

TEST_F(KvPagesTest, PageBytesByDType) {
  const ModelConfig& c = model_->config();
  const int64_t rows = int64_t{2} * c.layers * c.kv_heads * 16;  // a token's K or V in one head and layer
  EXPECT_EQ(kv_page_bytes(c, all(), 16), rows * c.head_dim * 4);
  EXPECT_EQ(kv_page_bytes(c, all(), 16, DType::kF16), rows * c.head_dim * 2);
  EXPECT_EQ(kv_page_bytes(c, all(), 16, DType::kBF16), rows * c.head_dim * 2);
  EXPECT_EQ(kv_page_bytes(c, all(), 16, DType::kI8), rows * (c.head_dim + 4));
  EXPECT_EQ(page_count_for(c, all(), 16, static_cast<uint64_t>(rows * (c.head_dim + 4)) * 7, DType::kI8), 7);
}

TEST_F(KvPagesTest, DTypeNames) {
  EXPECT_EQ(*kv_dtype_from_name("f32"), DType::kF32);
  EXPECT_EQ(*kv_dtype_from_name("f16"), DType::kF16);
  EXPECT_EQ(*kv_dtype_from_name("bf16"), DType::kBF16);
  EXPECT_EQ(*kv_dtype_from_name("int8"), DType::kI8);
  EXPECT_EQ(kv_dtype_from_name("fp8").status().message(), "the KV dtype is 'fp8'; wanted f32, f16, bf16 or int8");
}

TEST_F(KvPagesTest, OptionsOutOfRangeAreErrors) {
  const auto code = [&](auto change) {
    KvPagesOptions options = options_;
    change(options);
    return KvPages::make(model_->config(), all(), options).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.page_size = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.page_count = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.host_page_count = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.host_page_count = kMaxPageCount + 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.dtype = DType::kU8; }), StatusCode::kInvalidArgument);
}

// Any bits, NaN with payloads among them, in every dtype; and the poison of a fresh host page.
TEST_F(KvPagesTest, ACopyToTheHostAndBackLosesNoBit) {
  ThreadPool pool(3);
  for (const DType dtype : kDTypes) {
    options_.dtype = dtype;
    KvPages pages = make();
    const std::string poison = page_of(pages, 0);
    EXPECT_EQ(poison, std::string(poison.size(), '\xff'));
    std::vector<std::string> wanted;
    for (int32_t page = 0; page < 6; ++page) {
      wanted.push_back(random_page());
      set_page(pages, page, wanted.back());
    }
    ASSERT_TRUE(pages.copy(std::vector{to_host(0, 2), to_host(5, 0)}, pool).ok());
    set_page(pages, 0, wanted[1]);
    set_page(pages, 5, wanted[1]);
    ASSERT_TRUE(pages.copy(std::vector{from_host(2, 3), from_host(0, 0), from_host(1, 5)}, pool).ok());
    const std::string expected[] = {wanted[5], wanted[1], wanted[2], wanted[0], wanted[4], poison};
    for (int32_t page = 0; page < 6; ++page) EXPECT_EQ(page_of(pages, page), expected[page]) << page;
  }
}

TEST_F(KvPagesTest, CopiesAreDoneInTheirOrder) {
  ThreadPool pool(3);
  KvPages pages = make();
  const std::string a = random_page(), b = random_page();
  set_page(pages, 0, a);
  set_page(pages, 1, b);
  // Through one host page: 0 to 2, 1 to 3; then 0 and 1 change places by way of two.
  ASSERT_TRUE(pages
                  .copy(std::vector{to_host(0, 0), from_host(0, 2), to_host(1, 0), from_host(0, 3), to_host(0, 1),
                                    to_host(1, 2), from_host(1, 1), from_host(2, 0)},
                        pool)
                  .ok());
  EXPECT_EQ(page_of(pages, 2), a);
  EXPECT_EQ(page_of(pages, 3), b);
  EXPECT_EQ(page_of(pages, 1), a);
  EXPECT_EQ(page_of(pages, 0), b);
}

TEST_F(KvPagesTest, ACopyOutOfRangeIsRefusedBeforeAnythingMoves) {
  ThreadPool pool(1);
  KvPages pages = make();
  const std::string a = random_page();
  set_page(pages, 0, a);
  set_page(pages, 1, random_page());
  const std::string before = page_of(pages, 1);
  const std::pair<PageCopy, std::string> cases[] = {
      {to_host(6, 0), "a copy of the page 6; wanted [0, 6)"},
      {to_host(-1, 0), "a copy of the page -1; wanted [0, 6)"},
      {from_host(3, 0), "a copy of the host page 3; wanted [0, 3)"},
      {from_host(-1, 0), "a copy of the host page -1; wanted [0, 3)"},
  };
  for (const auto& [bad, message] : cases) {
    const Status status = pages.copy(std::vector{to_host(0, 0), from_host(0, 1), bad}, pool);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(page_of(pages, 1), before);
  }
}

// Any bits, in every dtype, from one pool to another.
TEST_F(KvPagesTest, PagesAreReadAndWrittenWithoutLosingABit) {
  ThreadPool pool(3);
  for (const DType dtype : kDTypes) {
    options_.dtype = dtype;
    KvPages from = make(), to = make();
    const std::string a = random_page(), b = random_page(), before = page_of(to, 3);
    set_page(from, 4, a);
    set_page(from, 1, b);
    std::string bytes(a.size() + b.size(), '\0');
    ASSERT_TRUE(from.read(std::vector{PageId{4}, PageId{1}}, std::as_writable_bytes(std::span(bytes))).ok());
    EXPECT_EQ(bytes, a + b);
    EXPECT_EQ(from.bytes_of_page(), kv_page_bytes(model_->config(), all(), kPageSize, dtype));
    ASSERT_TRUE(to.write({{PageId{2}, PageId{0}}, {SharedBytes::of(a), SharedBytes::of(b)}}, pool).ok());
    EXPECT_EQ(page_of(to, 2), a);
    EXPECT_EQ(page_of(to, 0), b);
    EXPECT_EQ(page_of(to, 3), before);
  }
}

TEST_F(KvPagesTest, ReadsAndWritesOutOfRangeAreRefused) {
  ThreadPool pool(1);
  KvPages pages = make();
  const SharedBytes bytes = SharedBytes::of(random_page());
  const std::string before = page_of(pages, 0);
  std::string to(bytes.size_bytes(), '\0');
  const auto span = std::as_writable_bytes(std::span(to));
  EXPECT_EQ(pages.read(std::vector{PageId{6}}, span).message(), "a read of the page 6; wanted [0, 6)");
  EXPECT_EQ(pages.read(std::vector{PageId{0}, PageId{1}}, span).message(),
            fmt::format("{} bytes for 2 pages; wanted {}", bytes.size_bytes(), 2 * bytes.size_bytes()));
  EXPECT_EQ(pages.write({{PageId{-1}}, {bytes}}, pool).message(), "a write of the page -1; wanted [0, 6)");
  EXPECT_EQ(pages.write({{PageId{0}, PageId{1}}, {bytes}}, pool).message(),
            fmt::format("{} bytes for 2 pages; wanted {}", bytes.size_bytes(), 2 * bytes.size_bytes()));
  EXPECT_FALSE(pages.write({{PageId{0}}, {}}, pool).ok());
  EXPECT_EQ(pages.write({{PageId{0}}, {bytes.slice(0, 8), bytes.slice(8, bytes.size_bytes() - 8)}}, pool).message(),
            fmt::format("8 bytes in one part; wanted whole pages of {}", bytes.size_bytes()));
  EXPECT_EQ(page_of(pages, 0), before);
}

// A request's prompt is computed, its pages go to the host tier while another request takes them over in the very same
// batch, they come back to other pages, and the request goes on: every row of logits as if nothing had happened.
class HostTierTest : public KvPagesTest {
 protected:
  std::unique_ptr<ModelRunner> make_runner(DType dtype) {
    RunnerOptions options;
    options.threads = 2;
    options.page_size = kPageSize;
    options.page_count = 8;
    options.host_page_count = 3;
    options.kv_dtype = dtype;
    options.poison_pages = true;
    options.logits_hook = [this](uint64_t, std::span<const ReqId> ids, kernels::Rows logits) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const float* row = logits.row(static_cast<int64_t>(i));
        if (ids[i].value == 1) logits_.emplace_back(row, row + logits.width);
      }
      if (on_logits_) on_logits_();
    };
    return ModelRunner::make(model_, std::move(options)).value();
  }
  static SequenceStep step(uint64_t id, std::vector<int32_t> tokens, int32_t position, std::vector<int32_t> pages) {
    SequenceStep made;
    made.request = ReqId{id};
    made.tokens = std::move(tokens);
    made.position = position;
    made.pages = std::move(pages);
    made.sample = true;
    made.sampling.temperature = 0;
    return made;
  }
  static BatchResult run(Runner& runner, Batch batch) {
    EXPECT_TRUE(runner.submit(std::move(batch)).ok());
    std::optional<BatchResult> result;
    while (!result) result = runner.poll(1000);
    return std::move(*result);
  }

  std::vector<std::vector<float>> logits_;  // of request 1
  std::function<void()> on_logits_;         // on the compute thread, before the step ends
};

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // three full pages

TEST_F(HostTierTest, ARequestGoesOnWithThePagesThatCameBack) {
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(dtype_name(dtype));
    logits_.clear();
    auto plain = make_runner(dtype);
    run(*plain, {.step = 1, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
    run(*plain, {.step = 2, .sequences = {step(1, {13, 14}, 12, {0, 1, 2, 3})}});
    const auto wanted = std::exchange(logits_, {});
    ASSERT_EQ(wanted.size(), 2u);

    auto runner = make_runner(dtype);
    EXPECT_EQ(runner->facts().host_page_count, 3);
    run(*runner, {.step = 1, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
    run(*runner, {.step = 2,
                  .copies = {to_host(0, 1), to_host(1, 2), to_host(2, 0)},
                  .sequences = {step(2, {20, 21, 22, 23, 24, 25, 26, 27, 28, 29}, 0, {0, 1, 2})}});
    run(*runner, {.step = 3,
                  .copies = {from_host(1, 6), from_host(2, 5), from_host(0, 7)},
                  .sequences = {step(1, {13, 14}, 12, {6, 5, 7, 4})}});
    EXPECT_EQ(logits_, wanted);
  }
}

// The pages of a prompt as bytes into another runner, which goes on: every row of logits as if it had computed them.
TEST_F(HostTierTest, ARunnerGoesOnWithThePagesOfAnother) {
  for (const DType dtype : kDTypes) {
    auto plain = make_runner(dtype);
    run(*plain, {.step = 1, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
    logits_.clear();
    // While a batch is in flight that reads them and writes the next page.
    std::string bytes(static_cast<std::size_t>(3 * plain->facts().kv_page_bytes), '\0');
    ASSERT_TRUE(plain->submit({.step = 2, .sequences = {step(1, {13, 14}, 12, {0, 1, 2, 3})}}).ok());
    const std::vector pages = {PageId{0}, PageId{1}, PageId{2}};
    ASSERT_TRUE(plain->read_pages(pages, std::as_writable_bytes(std::span(bytes)), {}).ok());
    while (!plain->poll(1000)) {
    }
    const auto wanted = std::exchange(logits_, {});
    ASSERT_EQ(wanted.size(), 1u);

    auto other = make_runner(dtype);
    const SharedBytes shared = SharedBytes::of(std::move(bytes));
    EXPECT_TRUE(run(*other, {.step = 1, .writes = {{{PageId{6}, PageId{1}, PageId{3}}, {shared}}}}).status.ok());
    run(*other, {.step = 2, .sequences = {step(1, {13, 14}, 12, {6, 1, 3, 5})}});
    EXPECT_EQ(std::exchange(logits_, {}), wanted);
  }
}

// Layer by layer, read while the step that computes them still runs and written in several batches: the same.
TEST_F(HostTierTest, ARunnerGoesOnWithTheLayersOfAStepThatStillRuns) {
  for (const DType dtype : kDTypes) {
    auto plain = make_runner(dtype);
    const int32_t layers = plain->facts().layers;
    ASSERT_GT(layers, 1);
    const std::vector pages = {PageId{0}, PageId{1}, PageId{2}};
    std::vector<std::string> bytes(static_cast<std::size_t>(layers));
    EXPECT_FALSE(plain->stored_rows());
    on_logits_ = [&] {
      const std::optional<StoredRows> stored = plain->stored_rows();
      ASSERT_TRUE(stored);
      EXPECT_EQ(stored->step, 1u);
      EXPECT_EQ(stored->complete, 0);
      EXPECT_EQ(stored->rows, static_cast<int64_t>(kPrompt.size()));
      EXPECT_EQ(stored->layers, layers);
      for (int32_t layer = 0; layer < layers; ++layer) {
        std::string& of = bytes[static_cast<std::size_t>(layer)];
        of.resize(static_cast<std::size_t>(3 * plain->facts().kv_page_bytes / layers));
        EXPECT_TRUE(plain->read_pages(pages, std::as_writable_bytes(std::span(of)), {layer, layer + 1}).ok());
      }
    };
    run(*plain, {.step = 1, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
    on_logits_ = nullptr;
    EXPECT_FALSE(plain->stored_rows());
    logits_.clear();
    run(*plain, {.step = 2, .sequences = {step(1, {13, 14}, 12, {0, 1, 2, 3})}});
    const auto wanted = std::exchange(logits_, {});

    auto other = make_runner(dtype);
    uint64_t number = 0;
    for (int32_t layer = 0; layer < layers; ++layer) {
      const SharedBytes shared = SharedBytes::of(std::string(bytes[static_cast<std::size_t>(layer)]));
      const PageWrite write{{PageId{6}, PageId{1}, PageId{3}}, {shared}, {layer, layer + 1}};
      EXPECT_TRUE(run(*other, {.step = ++number, .writes = {write}}).status.ok());
    }
    const PageWrite none{{PageId{6}}, {SharedBytes::of(std::string(bytes[0]))}, {layers, layers + 1}};
    EXPECT_EQ(run(*other, {.step = ++number, .writes = {none}}).status.message(),
              fmt::format("layers [{}, {}) of pages; wanted some of [0, {})", layers, layers + 1, layers));
    run(*other, {.step = ++number, .sequences = {step(1, {13, 14}, 12, {6, 1, 3, 5})}});
    EXPECT_EQ(std::exchange(logits_, {}), wanted);
  }
}

// The scheduler counts the copies of a batch that was accepted as done, whatever becomes of its rows.
TEST_F(HostTierTest, ABatchThatFailsHasCopiedItsPages) {
  const SequenceStep bad = step(2, {-5}, 0, {4});
  for (const auto& [version, sequences] :
       {std::pair{uint64_t{99}, std::vector<SequenceStep>{}}, {uint64_t{0}, {bad}}}) {
    logits_.clear();
    auto runner = make_runner(DType::kF32);
    run(*runner, {.step = 1, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
    run(*runner, {.step = 2, .sequences = {step(1, {13}, 12, {0, 1, 2, 3})}});
    const Batch failing{.step = 3,
                        .weight_version = version,
                        .copies = {to_host(0, 1), to_host(1, 2), to_host(2, 0)},
                        .sequences = sequences};
    EXPECT_FALSE(run(*runner, failing).status.ok());
    run(*runner, {.step = 4,
                  .copies = {from_host(1, 6), from_host(2, 5), from_host(0, 7)},
                  .sequences = {step(1, {13}, 12, {6, 5, 7, 4})}});
    ASSERT_EQ(logits_.size(), 3u);
    EXPECT_EQ(logits_[2], logits_[1]);
  }
}

TEST_F(HostTierTest, ABatchWithACopyOutOfRangeIsRefused) {
  auto runner = make_runner(DType::kF32);
  const BatchResult result =
      run(*runner, {.step = 4, .copies = {to_host(0, 3)}, .sequences = {step(1, kPrompt, 0, {0, 1, 2})}});
  EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.status.message(), "step 4: a copy of the host page 3; wanted [0, 3)");
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_TRUE(logits_.empty());
  EXPECT_FALSE(run(*runner, {.step = 5, .copies = {from_host(0, 8)}}).status.ok());
  EXPECT_TRUE(run(*runner, {.step = 6, .copies = {to_host(7, 2)}}).status.ok()) << "copies alone are a batch";
}

}  // namespace
}  // namespace millrace
