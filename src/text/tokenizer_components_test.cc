// Every component and option of tokenizer.json against Hugging Face tokenizers 0.23, on one small vocabulary:
// tests/golden/tokenizer/components.json, made by tests/oracles/tokenizer_components.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace millrace {
namespace {

using nlohmann::json;

class ComponentsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ifstream file(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/tokenizer/components.json");
    golden_ = new json(json::parse(file));
  }

  static json specification(const json& test_case) {
    json spec = (*golden_)["base"];
    for (const auto& [key, value] : test_case["variant"].items()) {
      if (key == "model") {
        spec["model"].update(value);
      } else {
        spec[key] = value;
      }
    }
    spec["added_tokens"] = test_case["added"];
    return spec;
  }

  static json* golden_;
};

json* ComponentsTest::golden_ = nullptr;

TEST_F(ComponentsTest, EncodeAndDecodeLikeTheOracle) {
  size_t compared = 0;
  for (const json& test_case : (*golden_)["cases"]) {
    SCOPED_TRACE(test_case["variant"].dump());
    const auto tokenizer = Tokenizer::from_json(specification(test_case).dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    const json& texts = (*golden_)["texts"];
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = (*tokenizer)->encode(texts[i].get<std::string>());
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      EXPECT_EQ(*ids, test_case["ids"][i].get<std::vector<int32_t>>()) << "'" << texts[i].get<std::string>() << "'";
      const json& decoded = test_case["decoded"][i];
      if (decoded.is_null()) continue;  // the oracle panics
      const std::vector<int32_t> wanted_ids = test_case["ids"][i];
      for (const bool skip : {false, true}) {
        EXPECT_EQ((*tokenizer)->decode(wanted_ids, skip), decoded[skip ? 1 : 0].get<std::string>())
            << "'" << texts[i].get<std::string>() << "' " << skip;
        IncrementalDetokenizer detokenizer(*tokenizer, skip);
        std::string joined;
        for (const int32_t id : wanted_ids) joined += detokenizer.push(id);
        EXPECT_EQ(joined + detokenizer.finish(), decoded[skip ? 1 : 0].get<std::string>());
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 3000u);
}

}  // namespace
}  // namespace millrace
