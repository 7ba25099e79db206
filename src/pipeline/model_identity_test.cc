// What hosts of one text pipeline compare: each part shows its own differences.
#include "pipeline/model_identity.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pipeline/testing/text_library.h"
#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class ModelIdentityTest : public ::testing::Test {
 protected:
  ModelIdentityTest() {
    std::string folder = (fs::temp_directory_path() / "identity-XXXXXX").string();
    EXPECT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    fs::copy(fs::path(MILLRACE_SOURCE_DIR) / "models/demo", folder_, fs::copy_options::recursive);
  }
  ~ModelIdentityTest() override { fs::remove_all(folder_); }

  static PipelineSpec spec() {
    return parse_pipeline(builtin_pipeline(false), "text.yaml", testing::text_library()).value();
  }
  ModelIdentity now(const PipelineSpec& of = spec()) {
    auto found = identify(of, {.model = folder_, .quantize = quantize_, .kv_dtype = kv_dtype_}, false);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    return found.ok() ? *found : ModelIdentity{};
  }
  void change(const std::string& file, int64_t at) {
    std::fstream stream(folder_ / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
    stream.put('\x01');
  }

  fs::path folder_;
  std::string kv_dtype_ = "f32", quantize_ = "none";
};

TEST_F(ModelIdentityTest, PackedAndBackIsTheSame) {
  const ModelIdentity one = now();
  EXPECT_NE(one.file, 0u);
  EXPECT_NE(one.text, 0u);
  EXPECT_NE(one.weights, 0u);
  EXPECT_EQ(ModelIdentity::unpack(one.packed()), one);
  EXPECT_EQ(now(), one);
  EXPECT_TRUE(same_identity(one, one).ok());
}

TEST_F(ModelIdentityTest, EachPartThatDiffersIsNamed) {
  const ModelIdentity one = now();
  PipelineSpec other = spec();
  other.stages[0].replicas = 2;
  EXPECT_NE(same_identity(now(other), one).message().find("another pipeline"), std::string::npos);
  std::ofstream(folder_ / "generation_config.json", std::ios::app) << "\n";
  EXPECT_NE(same_identity(now(), one).message().find("generation_config.json"), std::string::npos);
  EXPECT_EQ(now().weights, one.weights);
}

TEST_F(ModelIdentityTest, OtherWeightsOfTheSameShapeAreFound) {
  const ModelIdentity one = now();
  change("model.safetensors", -1);  // the last byte of the last tensor
  EXPECT_EQ(now().text, one.text);
  EXPECT_EQ(same_identity(now(), one).code(), StatusCode::kConflict);
  EXPECT_NE(same_identity(now(), one).message().find("weights"), std::string::npos);
}

TEST_F(ModelIdentityTest, WhatChangesTheBitsCounts) {
  const ModelIdentity one = now();
  kv_dtype_ = "int8";
  EXPECT_FALSE(same_identity(now(), one).ok());
  kv_dtype_ = "f32";
  EXPECT_EQ(now(), one);
  quantize_ = "q8_0";
  EXPECT_NE(now().weights, one.weights);
}

TEST_F(ModelIdentityTest, AHostWithoutWeightsDiffersFromNoOther) {
  const ModelIdentity one = now();
  fs::remove(folder_ / "model.safetensors");
  EXPECT_EQ(now().weights, 0u);
  EXPECT_TRUE(same_identity(now(), one).ok());
  EXPECT_TRUE(same_identity(one, now()).ok());
  EXPECT_EQ(identify(spec(), {.model = folder_}, true).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
