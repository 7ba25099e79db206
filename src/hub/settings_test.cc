#include "hub/settings.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace millrace::hub {
namespace {

using Variables = std::map<std::string, std::string>;

Result<HubSettings> settings_of(const Variables& variables) {
  return read_settings([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(HubSettingsTest, TheCacheIsWhereTheOtherToolsHaveIt) {
  EXPECT_EQ(settings_of({{"HOME", "/h"}})->cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}})->cache, "/x/huggingface/hub");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/f"}})->cache, "/f/hub");
  EXPECT_EQ(settings_of({{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/o"}})->cache, "/o");
  EXPECT_EQ(settings_of({{"HF_HOME", "/f"}, {"HUGGINGFACE_HUB_CACHE", "/o"}, {"HF_HUB_CACHE", "/c"}})->cache, "/c");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_HOME", "~/f"}})->cache, "/h/f/hub");
  EXPECT_NE(settings_of({}).status().message().find("HF_HOME"), std::string::npos);
}

TEST(HubSettingsTest, Endpoints) {
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_ENDPOINT", "https://hub.example/"}})->endpoint, "https://hub.example");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_ENDPOINT", "http://[::1]:8080/sub"}})->endpoint, "http://[::1]:8080/sub");
  EXPECT_EQ(settings_of({{"HOME", "/h"}, {"HF_ENDPOINT", ""}})->endpoint, settings_of({{"HOME", "/h"}})->endpoint);
  for (const char* bad : {"hub.example", "ftp://hub.example", "https://user:word@hub.example", "https://hub.example/?a",
                          "https://hub.example\r\nX: 1", "https://"}) {
    const auto settings = settings_of({{"HOME", "/h"}, {"HF_ENDPOINT", bad}});
    ASSERT_FALSE(settings.ok()) << bad;
    EXPECT_NE(settings.status().message().find("HF_ENDPOINT is"), std::string::npos);
  }
}

TEST(HubSettingsTest, Offline) {
  for (const char* yes : {"1", "true", "ON", "Yes"}) {
    EXPECT_TRUE(settings_of({{"HOME", "/h"}, {"HF_HUB_OFFLINE", yes}})->offline) << yes;
  }
  for (const char* no : {"", "0", "false"}) {
    EXPECT_FALSE(settings_of({{"HOME", "/h"}, {"HF_HUB_OFFLINE", no}})->offline) << no;
  }
  EXPECT_TRUE(settings_of({{"HOME", "/h"}, {"TRANSFORMERS_OFFLINE", "1"}})->offline);
}

TEST(HubSettingsTest, TokensOfTheEnvironmentAndOfTheFile) {
  const std::string home = std::filesystem::temp_directory_path() / "hub-settings-test";
  std::filesystem::create_directories(home);
  std::ofstream(home + "/token") << "  hf_file\n";
  EXPECT_EQ(settings_of({{"HF_HOME", home}})->token, "hf_file");
  EXPECT_EQ(settings_of({{"HF_HOME", home}, {"HF_TOKEN", "hf_env\n"}})->token, "hf_env");
  EXPECT_EQ(settings_of({{"HF_HOME", home}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}})->token, "");
  EXPECT_EQ(settings_of({{"HF_HOME", home}, {"HF_TOKEN_PATH", "/nonexistent"}})->token, "");
  const auto bad = settings_of({{"HF_HOME", home}, {"HF_TOKEN", "hf secret"}});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message().find("secret"), std::string::npos) << "a token is in no message";
  std::filesystem::remove_all(home);
}

}  // namespace
}  // namespace millrace::hub
