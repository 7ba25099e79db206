// Which models a router finds.
#include "app/router/model_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "hub/cache.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Takes the capabilities from this thread with which root reads folders of any mode.
class WithoutReadOverride {
 public:
  WithoutReadOverride() {
    if (::syscall(SYS_capget, &header_, before_) != 0) return;
    __user_cap_data_struct now[2] = {before_[0], before_[1]};
    now[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    changed_ = ::syscall(SYS_capset, &header_, now) == 0;
  }
  ~WithoutReadOverride() {
    if (changed_) ::syscall(SYS_capset, &header_, before_);
  }
  WithoutReadOverride(const WithoutReadOverride&) = delete;
  WithoutReadOverride& operator=(const WithoutReadOverride&) = delete;

 private:
  __user_cap_header_struct header_{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct before_[2] = {};
  bool changed_ = false;
};

class ModelListTest : public ::testing::Test {
 protected:
  ModelListTest() {
    log_init("test", LogLevel::kOff);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const fs::path& path, const std::string& text = "{}") {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text;
  }
  static std::vector<std::string> names_of(const std::vector<ServedModel>& models) {
    std::vector<std::string> out;
    out.reserve(models.size());
    for (const ServedModel& model : models) out.push_back(model.name);
    return out;
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) / "model_list";
};

TEST_F(ModelListTest, AnUnreadableSubfolderIsSkipped) {
  write("one/config.json");
  write("lost+found/inner/config.json");
  write("of/two/config.json");
  fs::permissions(folder_ / "lost+found", fs::perms::none);
  {
    const WithoutReadOverride no_override;
    std::error_code failed;
    const fs::directory_iterator entries(folder_ / "lost+found", failed);
    if (!failed) GTEST_SKIP() << "every folder can be read here";
    const auto models = list_models_to_serve({.folder = folder_.string()});
    EXPECT_TRUE(models.ok()) << models.status().message();
    EXPECT_EQ(models.ok() ? names_of(*models) : std::vector<std::string>{},
              (std::vector<std::string>{"of/two", "one"}));
    // The named folder itself must be readable.
    const auto none = list_models_to_serve({.folder = (folder_ / "lost+found").string()});
    EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(none.status().message().find("cannot be read"), std::string::npos);
  }
  fs::permissions(folder_ / "lost+found", fs::perms::owner_all);
}

// Its files would be loaded twice, and a removal by one name would take those of the other.
TEST_F(ModelListTest, WhatHasAnotherNameAlreadyIsNotListedAgain) {
  const hub::Cache cache((folder_ / "hub").string());
  const std::string commit(40, 'a');
  for (const char* quant : {"Q4_K_M", "Q8_0"}) {
    const std::string file = fmt::format("n-{}.gguf", quant), etag = fmt::format("blob-{}", quant);
    write("hub/models--org--n/blobs/" + etag, quant);
    ASSERT_TRUE(hub::link_file(cache, "org/n", commit, file, etag).ok());
    ASSERT_TRUE(hub::set_revision(cache, "org/n", "main", commit).ok());
  }
  ::setenv("HF_HUB_CACHE", cache.root().c_str(), 1);
  const auto all = list_models_to_serve({.cached = true});
  const auto by_name = list_models_to_serve({.models = {"small=org/n:Q4_K_M"}, .cached = true});
  const auto by_path =
      list_models_to_serve({.models = {"large=" + cache.snapshot("org/n", commit) + "/n-Q8_0.gguf"}, .cached = true});
  ::unsetenv("HF_HUB_CACHE");
  ASSERT_TRUE(all.ok() && by_name.ok() && by_path.ok());
  EXPECT_EQ(names_of(*all), (std::vector<std::string>{"org/n:Q4_K_M", "org/n:Q8_0"}));
  EXPECT_EQ(names_of(*by_name), (std::vector<std::string>{"small", "org/n:Q8_0"}));
  EXPECT_EQ(names_of(*by_path), (std::vector<std::string>{"large", "org/n:Q4_K_M"}));
}

// What a client may send: its server has the shorter one of the model's own and of --context-length.
TEST_F(ModelListTest, TheContextIsThatOfTheModelsServer) {
  const std::string demo = MILLRACE_SOURCE_DIR "/models/demo";
  write("models.yaml", "short: {context-length: 256}\nfull: {context-length: 0}\nlong: {context-length: 4000}\n");
  for (const auto& [of_all, wanted] : {std::pair(0, 1024), {512, 512}, {2000, 1024}}) {
    const auto models =
        list_models_to_serve({.models = {"plain=" + demo, "short=" + demo, "full=" + demo, "long=" + demo},
                              .file = folder_ / "models.yaml",
                              .context_length = of_all});
    ASSERT_TRUE(models.ok()) << models.status().message();
    std::vector<int> contexts;
    for (const ServedModel& model : *models) contexts.push_back(model.context);
    EXPECT_EQ(contexts, (std::vector<int>{wanted, 256, 1024, 1024})) << of_all;
  }
}

}  // namespace
}  // namespace millrace
