#include "text/tools/history_form.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace millrace {
namespace {

TEST(ToolHistoryFormTest, IsWhatRealTemplatesWant) {
  std::ifstream file(MILLRACE_SOURCE_DIR "/tests/golden/jinja/chat.json");
  const auto golden = nlohmann::ordered_json::parse(file);
  const auto form = [&](const char* name) {
    auto parsed = ChatTemplate::parse(golden["templates"][name]["source"].get<std::string>());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    const ToolHistoryForm found = find_tool_history_form(*parsed);
    return std::vector<bool>{found.arguments_as_text, found.null_content, found.short_ids};
  };
  EXPECT_EQ(form("qwen3"), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(form("qwen2_5"), (std::vector<bool>{false, false, false}));
  EXPECT_EQ(form("deepseek_v3"), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(form("llama3"), (std::vector<bool>{false, false, false}));  // it renders no calls at all
  // Mistral's needs its special tokens as variables.
  auto mistral = ChatTemplate::parse("{% set bos_token = '<s>' %}{% set eos_token = '</s>' %}" +
                                     golden["templates"]["mistral_nemo"]["source"].get<std::string>());
  ASSERT_TRUE(mistral.ok());
  EXPECT_TRUE(find_tool_history_form(*mistral).short_ids);
  EXPECT_FALSE(find_tool_history_form(*mistral).arguments_as_text);
}

TEST(ToolHistoryFormTest, TheRoleDeveloperIsOneThatTheTemplateNames) {
  const auto knows = [](const char* source) {
    return find_tool_history_form(*ChatTemplate::parse(source)).developer_role;
  };
  EXPECT_TRUE(knows("{% for m in messages %}{% if m.role == 'developer' %}{{ m.content }}{% endif %}{% endfor %}"));
  EXPECT_TRUE(knows("{% for m in messages if m.role in [\"system\", \"developer\"] %}{{ m.content }}{% endfor %}"));
  EXPECT_FALSE(knows("{% for m in messages %}{{ m.role }} of the developers{% endfor %}"));
}

}  // namespace
}  // namespace millrace
