// The file of --models-file.
#include "app/router/models_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "app/router/child_arguments.h"

namespace millrace {
namespace {

class ModelsFileTest : public ::testing::Test {
 protected:
  Status read(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/models.yaml";
    std::ofstream(path) << text;
    return add_models_file(path, models_);
  }
  std::string why_not(const std::string& text) {
    const Status status = read(text);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    return status.message();
  }
  std::vector<ServedModel> models_{{.name = "small", .path = "/models/small"}};
};

TEST_F(ModelsFileTest, OptionsAreThoseOfTheirModel) {
  const Status status = read(R"(
small:
  alias: [mini, tiny]
  pin: true
  kv-gib: 2
  quantize: q8_0
big:
  model: ORG/BIG:Q4_K_M
  ttl-s: 60
)");
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(models_.size(), 2u);
  EXPECT_EQ(models_[0].path, "/models/small");
  EXPECT_EQ(models_[0].aliases, (std::vector<std::string>{"mini", "tiny"}));
  EXPECT_TRUE(models_[0].pinned);
  EXPECT_EQ(models_[0].arguments, (std::vector<std::string>{"--kv-gib=2", "--quantize=q8_0"}));
  EXPECT_EQ(models_[0].ttl_s, std::nullopt);
  EXPECT_EQ(models_[1].path, "ORG/BIG:Q4_K_M");
  EXPECT_EQ(models_[1].ttl_s, 60);
  EXPECT_EQ(arguments_of_model({"--kv-gib=8", "--threads=3"}, models_[0].arguments),
            (std::vector<std::string>{"--threads=3", "--kv-gib=2", "--quantize=q8_0"}));
  EXPECT_EQ(arguments_of_model({"--media-root=/a", "--video-max-mib=3"}, {"--media-root=/b"}),
            (std::vector<std::string>{"--video-max-mib=3", "--if-of-use=video-max-mib", "--media-root=/b"}));
}

TEST_F(ModelsFileTest, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_NE(why_not("smal: {pin: true}").find("'smal'"), std::string::npos);
  EXPECT_NE(why_not("smal: {pin: true}").find("small"), std::string::npos);  // the nearest name
  EXPECT_NE(why_not("small:\n  kv-gb: 2").find(":2: 'kv-gb' is no option of one model"), std::string::npos);
  EXPECT_NE(why_not("small:\n  kv-gib: much").find("much"), std::string::npos);
  for (const char* other : {"port", "api-key", "models-dir", "pipeline", "discovery", "allow-pull", "host"}) {
    EXPECT_NE(why_not(fmt::format("small: {{{}: x}}", other)).find("is no option of one model"), std::string::npos);
  }
  EXPECT_NE(why_not("small:\n  kv-gib: 2\n  kv-gib: 3").find(":3: 'kv-gib' stands twice"), std::string::npos);
  EXPECT_NE(why_not("small: {pin: true}\nsmall: {pin: false}").find(":2: 'small' is named twice"), std::string::npos);
  EXPECT_NE(why_not("big: {model: /nowhere}").find("/nowhere is not available"), std::string::npos);
  EXPECT_NE(why_not("small: {ttl-s: -1}").find("wanted seconds"), std::string::npos);
  EXPECT_NE(why_not("small: {pin: perhaps}").find("true or false"), std::string::npos);
  EXPECT_NE(why_not("small: 7").find("wanted lines"), std::string::npos);
  EXPECT_NE(why_not("[small]").find("wanted names of models"), std::string::npos);
  EXPECT_NE(why_not("small: {alias: {a: b}}").find("has no value"), std::string::npos);
  EXPECT_NE(why_not("small: {").find(":"), std::string::npos);
  EXPECT_EQ(add_models_file("/nowhere/x.yaml", models_).code(), StatusCode::kNotFound);
  EXPECT_TRUE(read("").ok());
}

}  // namespace
}  // namespace millrace
