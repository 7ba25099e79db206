// A model that is written as one file shows how far it is, and one that is stopped leaves nothing behind. One whose
// embeddings or scores a GGUF file does not hold is not written.
#include "models/quantize_model.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

class QuantizeModelTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("quantize-") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Status quantize(const WriteProgress& progress) {
    return quantize_model({.input = std::string(MILLRACE_SOURCE_DIR) + "/models/demo",
                           .output = (folder_ / "out.gguf").string(),
                           .type = "q8_0"},
                          progress);
  }
  fs::path folder_;
};

TEST_F(QuantizeModelTest, ProgressGoesOnToTheEnd) {
  uint64_t last = 0, all = 0;
  int calls = 0;
  ASSERT_TRUE(quantize([&](uint64_t done, uint64_t total) {
                EXPECT_GE(done, last);
                last = done, all = total;
                ++calls;
                return true;
              }).ok());
  EXPECT_GE(calls, 2);
  EXPECT_EQ(last, all);
  EXPECT_TRUE(fs::exists(folder_ / "out.gguf"));
}

TEST_F(QuantizeModelTest, OneThatIsStoppedLeavesNothing) {
  EXPECT_EQ(quantize([](uint64_t, uint64_t) { return false; }).code(), StatusCode::kCancelled);
  EXPECT_TRUE(fs::is_empty(folder_));
}

constexpr char kTransformer[] = R"({"type": "sentence_transformers.models.Transformer"})";
constexpr char kPooling[] = R"({"type": "sentence_transformers.models.Pooling"})";
constexpr char kNormalize[] = R"({"type": "sentence_transformers.models.Normalize"})";

Status quantized(const std::string& modules, const std::string& pooling) {
  TempDir dir;
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(std::string(MILLRACE_SOURCE_DIR "/tests/golden/models/tiny_qwen3/") + name, dir.file(name));
  }
  if (!modules.empty()) dir.write("modules.json", modules);
  fs::create_directory(dir.file("1_Pooling"));
  dir.write("1_Pooling/config.json", pooling);
  const Status status =
      quantize_model({.input = dir.path(), .output = dir.file("out.gguf")}, [](uint64_t, uint64_t) { return true; });
  EXPECT_FALSE(fs::exists(dir.file("out.gguf")));
  return status;
}

TEST(QuantizeModelFolder, EmbeddingsThatAFileCannotHoldAreRefused) {
  const std::string last = R"({"pooling_mode_lasttoken": true})", mean = R"({"pooling_mode_mean_tokens": true})";
  const auto list = [](std::initializer_list<const char*> modules) {
    std::string out;
    for (const char* module : modules) out += (out.empty() ? "[" : ", ") + std::string(module);
    return out + "]";
  };
  const std::string normalized = list({kTransformer, kPooling, kNormalize});
  const auto refused = [](const Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
    test_files::expect_message(status.message(), {part, "wanted"});
  };
  refused(quantized(normalized, mean), "mean pooling");
  refused(quantized(list({kTransformer, kPooling}), last), "embeddings that are not normalized");
  refused(quantized(normalized, R"({"pooling_mode_cls_token": true})"), "pooling_mode_cls_token");
  // These are as any file's. The model has no tokenizer, which comes next.
  for (const std::string& modules : {std::string(), normalized}) {
    test_files::expect_message(quantized(modules, last).message(), {"tokenizer.json"});
  }
  // A reranker's embeddings are none of its use.
  const char* score = R"({"type": "sentence_transformers.cross_encoder.LogitScore", "path": "1_Pooling"})";
  const Status reranker = quantized(list({kTransformer, score}), R"({"true_token_id": 1, "false_token_id": 2})");
  test_files::expect_message(reranker.message(), {"tokenizer.json"});
}

}  // namespace
}  // namespace millrace
