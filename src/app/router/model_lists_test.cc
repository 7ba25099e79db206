// The lists of a server of several models.
#include "app/router/model_lists.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"

namespace millrace {
namespace {

Json parsed(const std::string& text) {
  const auto json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

// Ollama's clients take the first 12 digits of a digest and look names up with their tags.
TEST(ModelLists, OllamasClientsFindWhatTheyRead) {
  std::vector<ServedModel> models = {{.name = "demo", .path = MILLRACE_SOURCE_DIR "/models/demo"},
                                     {.name = "org/there:Q8_0", .path = "org/there:Q8_0"},
                                     {.name = "\xff", .path = "org/there"}};
  for (ServedModel& model : models) describe_model(model, 512);
  const std::vector<ModelStatus> statuses = {{.name = "demo", .state = ModelState::kLoaded}, {}, {}};
  const Json tags = parsed(ollama_list(models, statuses, false))["models"];
  ASSERT_EQ(tags.size(), 3u);
  for (const Json& tag : tags) {
    EXPECT_EQ(tag["name"], tag["model"]);
    EXPECT_EQ(tag["digest"].get<std::string>().size(), 64u);
  }
  EXPECT_EQ(tags[0]["name"], "demo:latest");
  EXPECT_EQ(tags[0]["details"]["family"], "qwen3");
  EXPECT_EQ(tags[0]["details"]["format"], "safetensors");
  EXPECT_EQ(tags[1]["name"], "org/there:Q8_0");
  EXPECT_EQ(tags[1]["details"]["families"], Json::array());
  EXPECT_NE(tags[1]["digest"], tags[2]["digest"]);
  const Json running = parsed(ollama_list(models, statuses, true))["models"];
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0]["context_length"], 512);
  EXPECT_EQ(running[0]["digest"], tags[0]["digest"]);
}

}  // namespace
}  // namespace millrace
