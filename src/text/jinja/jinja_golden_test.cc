// The engine against python3-jinja2: snippets for every construct, and real chat templates over many conversations
// (tests/oracles/jinja_*.py). MILLRACE_JINJA_CASES names a further file of snippets, for random campaigns by hand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "text/jinja/template.h"
#include "text/json_value.h"

namespace millrace::jinja {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kNow = 1'700'000'000;  // as in tests/oracles/jinja_environment.py

OrderedJson read_golden(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return OrderedJson::parse(text.str());
}

OrderedJson golden(const std::string& name) {
  return read_golden(std::string(MILLRACE_SOURCE_DIR "/tests/golden/jinja/") + name);
}

std::vector<std::pair<std::string, Value>> to_variables(const OrderedJson& context) {
  std::vector<std::pair<std::string, Value>> out;
  for (const auto& [name, value] : context.items()) out.emplace_back(name, *json_to_value(value));
  return out;
}

// What the oracle and we make of one case; a failure to parse is a failure to render.
void check(const Result<MarkedString>& got, const OrderedJson& wanted, const std::string& what) {
  if (wanted.contains("error")) {
    EXPECT_FALSE(got.ok()) << what << "\n  rendered: " << got->text() << "\n  wanted: " << wanted["error"];
    if (!got.ok()) {
      EXPECT_NE(got.status().message().find(", line "), std::string::npos) << got.status().message();
    }
  } else {
    ASSERT_TRUE(got.ok()) << what << "\n  " << got.status().message() << "\n  wanted: " << wanted["expected"];
    EXPECT_EQ(got->text(), wanted["expected"].get<std::string>()) << what;
  }
}

Result<MarkedString> render(const std::string& source, const OrderedJson& context) {
  ASSIGN_OR_RETURN(Template parsed, Template::parse(source));
  return parsed.render(to_variables(context), kNow);
}

void check_snippets(const OrderedJson& file) {
  for (const auto& snippet : file["cases"]) {
    const auto& context = snippet.contains("context") ? snippet["context"] : file["context"];
    auto source = snippet["template"].get<std::string>();
    check(render(source, context), snippet, source);
  }
}

class JinjaGolden : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TZ", "UTC", 1);  // strftime_now shows local time
  }
};

TEST_F(JinjaGolden, Snippets) {
  OrderedJson file = golden("snippets.json");
  ASSERT_GT(file["cases"].size(), 1000u);
  check_snippets(file);
}

TEST_F(JinjaGolden, RandomTemplates) { check_snippets(golden("random.json")); }

TEST_F(JinjaGolden, HandwrittenCases) {
  const char* path = std::getenv("MILLRACE_JINJA_CASES");
  if (path == nullptr) GTEST_SKIP() << "MILLRACE_JINJA_CASES is not set; it names a further file of snippets";
  check_snippets(read_golden(path));
}

TEST_F(JinjaGolden, ChatTemplatesOfRealModels) {
  OrderedJson file = golden("chat.json");
  ASSERT_GT(file["cases"].size(), 500u);
  std::map<std::string, Template> templates;
  for (const auto& [name, model] : file["templates"].items()) {
    auto parsed = Template::parse(model["source"].get<std::string>(), name);
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    templates.emplace(name, std::move(*parsed));
  }
  for (const auto& item : file["cases"]) {
    auto name = item["template"].get<std::string>();
    OrderedJson context = file["templates"][name]["tokens"];
    if (item["options"].contains("extra")) context.update(item["options"]["extra"]);
    context["messages"] = file["conversations"][item["conversation"].get<std::string>()];
    context["tools"] = file["tools"][item["tools"].get<std::string>()];
    context["documents"] = nullptr;
    context["add_generation_prompt"] = item["options"]["add_generation_prompt"];
    OrderedJson wanted = item;
    if (item.contains("expected")) wanted["expected"] = file["texts"][item["expected"].get<size_t>()];
    OrderedJson label = {name, item["conversation"], item["tools"], item["options"]};
    check(templates.at(name).render(to_variables(context), kNow), wanted, label.dump());
  }
}

}  // namespace
}  // namespace millrace::jinja
