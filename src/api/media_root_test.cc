// Which files a file: URL reads.
#include "api/media_root.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace millrace::api {
namespace {

namespace fs = std::filesystem;

class MediaRootTest : public ::testing::Test {
 protected:
  MediaRootTest() {
    const char* given = std::getenv("TMPDIR");
    std::string pattern = (given != nullptr ? given : std::string("/tmp")) + "/media-root-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
    fs::create_directories(base_ + "/pics/below");
    write("pics/a.png", "a");
    write("pics/below/b c.png", "bc");
    write("secret", "secret");
    fs::create_symlink(base_ + "/secret", base_ + "/pics/link");
    fs::create_symlink(base_, base_ + "/pics/up");
    fs::create_symlink("a.png", base_ + "/pics/inside");
    fs::create_symlink(base_ + "/pics", base_ + "/alias");
    EXPECT_EQ(::mkfifo((base_ + "/pics/pipe").c_str(), 0600), 0);
  }
  ~MediaRootTest() override { fs::remove_all(base_); }

  void write(const std::string& name, const std::string& text) { std::ofstream(base_ + "/" + name) << text; }
  // The bytes, or the error.
  std::string read(const MediaRoot& root, const std::string& url, std::size_t most = 100) {
    const auto path = root.path_of(url);
    if (!path.ok()) return path.status().message();
    const auto bytes = root.read(*path, most, [](std::size_t) { return ok_status(); });
    return bytes.ok() ? *bytes : bytes.status().message();
  }
  std::string url(const std::string& path) const { return "file://" + base_ + path; }

  std::string base_;
};

constexpr char kNone[] = "there is no such regular file below --media-root, or it is a link";

TEST_F(MediaRootTest, FilesBelowAreRead) {
  for (const std::string folder : {"/pics", "/pics/", "/alias", "/pics/below/.."}) {
    const auto root = MediaRoot::open(base_ + folder);
    ASSERT_TRUE(root.ok()) << root.status().message();
    EXPECT_EQ(read(*root, url("/pics/a.png")), "a") << folder;
    EXPECT_EQ(read(*root, url("/pics/below/b%20c.png")), "bc");
    EXPECT_EQ(read(*root, "file://localhost" + base_ + "/pics/a.png"), "a");
    EXPECT_EQ(read(*root, "file:" + base_ + "/pics//a.png"), "a");
  }
  EXPECT_EQ(read(*MediaRoot::open(base_ + "/alias"), url("/alias/a.png")), "a") << "as the option has it";
}

TEST_F(MediaRootTest, NothingElseIsRead) {
  const auto root = MediaRoot::open(base_ + "/pics");
  ASSERT_TRUE(root.ok());
  for (const char* path :
       {"/pics/missing", "/pics/link", "/pics/inside", "/pics/up/secret", "/pics/up/pics/a.png", "/pics/below",
        "/pics/below/../../secret", "/pics/./a.png", "/pics/%2e%2e/secret", "/pics/pipe", "/pics/a.png/x"}) {
    EXPECT_EQ(read(*root, url(path)), kNone) << path;
  }
  for (const char* path : {"/secret", "/pics", "/pics/", "/picsless/a.png", ""}) {
    EXPECT_NE(read(*root, url(path)).find("is not below --media-root"), std::string::npos) << path;
  }
  for (const std::string bad :
       {"file://evil.example/a.png", "file:a.png", "file:", "file:////etc/passwd", "file:///pics/a%00.png",
        "file:///pics/a%zz", "file:///pics/a.png?x", "file:///pics/a#b"}) {
    EXPECT_NE(read(*root, bad).find("is no path of a file"), std::string::npos) << bad;
  }
  EXPECT_EQ(read(*root, url("/pics/below/b%20c.png"), 1), "it has 2 bytes; wanted at most 1");
  EXPECT_EQ(root->read("a.png", 9, [](std::size_t) { return Status(StatusCode::kResourceExhausted, "full"); })
                .status()
                .message(),
            "full");
}

TEST_F(MediaRootTest, TheFolderIsOne) {
  for (const char* path : {"/missing", "/secret"}) {
    EXPECT_NE(MediaRoot::open(base_ + path).status().message().find("wanted a folder"), std::string::npos) << path;
  }
}

}  // namespace
}  // namespace millrace::api
