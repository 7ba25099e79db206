#include "hub/selection.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace::hub {
namespace {

using Names = std::vector<std::string>;

std::vector<std::string> choice_names(const Names& names) {
  std::vector<std::string> out;
  for (const GgufChoice& one : gguf_choices(names)) out.push_back(one.name);
  return out;
}

std::string error_of(const Names& names, const std::string& quant = "") {
  const auto selection = select_files(names, quant, "org/name");
  return selection.ok() ? "" : selection.status().message();
}

TEST(HubSelection, AFolderOfSafetensorsWithoutOtherFormats) {
  const auto selection = select_files(
      {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja", "merges.txt", "README.md",
       "pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.safetensors", "onnx/config.json",
       "1_Pooling/config.json", "1_LogitScore/config.json", "1_LogitScore/other.json", "a/b/config.json", "model.onnx",
       "original/params.json", "model-q8_0.gguf", "additional_chat_templates/tool_use.jinja"},
      "", "org/name");
  ASSERT_TRUE(selection.ok()) << selection.status().message();
  EXPECT_EQ(selection->files, (Names{"config.json", "tokenizer.json", "chat_template.jinja", "merges.txt",
                                     "onnx/config.json", "1_Pooling/config.json", "1_LogitScore/config.json",
                                     "additional_chat_templates/tool_use.jinja", "model.safetensors"}));
  EXPECT_FALSE(selection->shards_by_index);
  EXPECT_FALSE(selection->gguf);
}

TEST(HubSelection, ShardsAreFoundByTheirIndex) {
  const auto selection = select_files({"config.json", "model-00001-of-00002.safetensors",
                                       "model-00002-of-00002.safetensors", "model.safetensors.index.json"},
                                      "", "org/name");
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->files, (Names{"config.json", "model.safetensors.index.json"}));
  EXPECT_TRUE(selection->shards_by_index);
}

// Names as the large publishers of GGUF files write them.
TEST(HubSelection, QuantizationsOfPublishedNames) {
  EXPECT_EQ(choice_names({"Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-IQ4_XS.gguf", "Qwen3-0.6B-UD-Q4_K_XL.gguf",
                          "Qwen3-0.6B-BF16.gguf", "qwen3.q4_k_m.gguf", "model-MXFP4.gguf"}),
            (Names{"BF16", "IQ4_XS", "MXFP4", "Q4_K_M", "Q8_0", "UD-Q4_K_XL"}));
  EXPECT_EQ(choice_names({"Qwen3-0.6B.gguf", "tinyllama-1.1b.gguf", "mmproj-F16.gguf"}),
            (Names{"Qwen3-0.6B", "tinyllama-1.1b"}));
  EXPECT_EQ(choice_names({"A-Q4_0.gguf", "B-Q4_0.gguf"}), (Names{"A-Q4_0.gguf", "B-Q4_0.gguf"}));
}

TEST(HubSelection, ShardsAreOneChoiceAndOnlyWhenComplete) {
  const Names all = {"Q8_0/m-Q8_0-00001-of-00003.gguf", "Q8_0/m-Q8_0-00002-of-00003.gguf",
                     "Q8_0/m-Q8_0-00003-of-00003.gguf"};
  const auto selection = select_files(all, "q8_0", "org/name");
  ASSERT_TRUE(selection.ok()) << selection.status().message();
  EXPECT_EQ(selection->files, all);
  EXPECT_EQ(selection->gguf->name, "Q8_0");
  EXPECT_EQ(gguf_choices({all[0], all[2]}).size(), 0u);
  EXPECT_EQ(gguf_choices({all[1], all[2]}).size(), 0u);
}

TEST(HubSelection, WithoutAQuantizationTheOnlyOneOrTheCustomaryOne) {
  EXPECT_EQ(select_files({"m-Q2_K.gguf"}, "", "org/name")->gguf->name, "Q2_K");
  EXPECT_EQ(select_files({"m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"}, "", "org/name")->gguf->name, "Q4_K_M");
  EXPECT_EQ(error_of({"m-Q2_K.gguf", "m-Q8_0.gguf"}),
            "org/name has 2 GGUF models and no quantization was named; wanted one of Q2_K, Q8_0: org/name:Q2_K");
}

TEST(HubSelection, AQuantizationIsFoundByLabelFileOrEnding) {
  const Names names = {"a-Q4_K_M.gguf", "a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf"};
  EXPECT_EQ(select_files(names, "q8_0", "org/name")->gguf->name, "Q8_0");
  EXPECT_EQ(select_files(names, "UD-Q4_K_XL", "org/name")->gguf->name, "UD-Q4_K_XL");
  EXPECT_EQ(select_files(names, "Q4_K_XL", "org/name")->gguf->name, "UD-Q4_K_XL");
  EXPECT_EQ(select_files(names, "a-Q8_0.gguf", "org/name")->gguf->name, "Q8_0");
  EXPECT_EQ(error_of(names, "Q5_K_M"), "org/name has no GGUF model Q5_K_M; wanted one of Q4_K_M, Q8_0, UD-Q4_K_XL");
  EXPECT_EQ(error_of({"a-Q8_0.gguf", "b-Q8_0.gguf"}, "Q8_0"),
            "org/name has 2 GGUF models of Q8_0; wanted one of a-Q8_0.gguf, b-Q8_0.gguf");
}

TEST(HubSelection, TheTowerComesAlong) {
  const auto selection = select_files({"m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf",
                                       "mmproj-F16.gguf", "other/mmproj-F16.gguf", "README.md"},
                                      "Q8_0", "org/name");
  ASSERT_TRUE(selection.ok());
  EXPECT_EQ(selection->files, (Names{"mmproj-F16.gguf", "m-Q8_0.gguf"}));
}

TEST(HubSelection, OtherFormatsAreNamed) {
  EXPECT_EQ(error_of({"pytorch_model.bin", "config.json", "tf_model.h5"}),
            "org/name has files of .bin, .h5, .json; wanted model.safetensors, its shards with "
            "model.safetensors.index.json, or .gguf");
  EXPECT_EQ(error_of({}),
            "org/name has files of nothing; wanted model.safetensors, its shards with "
            "model.safetensors.index.json, or .gguf");
  EXPECT_EQ(error_of({"model.safetensors"}, "Q8_0"),
            "org/name has no GGUF files, and Q8_0 was named; wanted org/name without it");
}

}  // namespace
}  // namespace millrace::hub
