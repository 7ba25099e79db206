// Pages as files: what comes back is what was saved, or nothing; and the limit.
#include "stages/kv_disk/page_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/log.h"

namespace millrace::kv_disk {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBytes = 1000;
constexpr uint64_t kRoomy = 1u << 30;

class PageFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log_init("test", LogLevel::kOff);
    path_ = ::testing::TempDir() + "kv-disk-" + std::to_string(::getpid());
    fs::remove_all(path_);
  }
  void TearDown() override { fs::remove_all(path_); }

  std::unique_ptr<PageFolder> open(uint64_t max_bytes = kRoomy) {
    auto folder = PageFolder::open(path_, max_bytes);
    EXPECT_TRUE(folder.ok()) << folder.status().to_string();
    return std::move(folder).value();
  }
  static PageName name(int32_t number) {
    PageName name;
    name.parent = text_digest("before");
    name.tokens = {number, 2, 3, 4};
    name.digest = chain_digest(&name.parent, name.tokens);
    return name;
  }
  static std::vector<std::byte> page(int32_t number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::vector<std::byte> bytes(kBytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) out.push_back(entry.path());
    }
    return out;
  }
  std::string path_;
};

TEST_F(PageFolderTest, WhatWasSavedComesBackAlsoAfterARestart) {
  auto folder = open();
  std::vector<std::byte> found(kBytes);
  EXPECT_EQ(folder->read(name(1), found).code(), StatusCode::kNotFound);
  for (int32_t i = 0; i < 20; ++i) EXPECT_TRUE(folder->write(name(i), page(i)).ok());
  const uint64_t bytes = folder->bytes();
  EXPECT_GT(bytes, 20 * kBytes);
  EXPECT_TRUE(folder->write(name(3), page(3)).ok());
  EXPECT_EQ(folder->bytes(), bytes) << "it was there";
  folder = open();
  EXPECT_EQ(folder->bytes(), bytes);
  for (int32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(folder->contains(name(i).digest));
    EXPECT_TRUE(folder->read(name(i), found).ok());
    EXPECT_EQ(found, page(i));
  }
  EXPECT_FALSE(folder->contains(name(20).digest));
  for (const fs::path& file : files()) {
    struct stat info {};
    ::stat(file.c_str(), &info);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
}

// Each byte of a file counts, and so does its length.
TEST_F(PageFolderTest, ADamagedFileIsRemovedAndNeverRead) {
  auto folder = open();
  std::vector<std::byte> found(kBytes);
  ASSERT_TRUE(folder->write(name(1), page(1)).ok());
  const fs::path file = files().at(0);
  const auto size = fs::file_size(file);
  for (std::size_t at = 0; at < size; at += at < 100 ? 1 : 97) {
    ASSERT_TRUE(folder->write(name(1), page(1)).ok());
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const char old = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(old ^ 4));
    stream.close();
    EXPECT_EQ(folder->read(name(1), found).code(), StatusCode::kUnavailable) << "byte " << at;
    EXPECT_TRUE(files().empty());
  }
  for (const uintmax_t cut : {uintmax_t{0}, uintmax_t{50}, size - 1, size + 1}) {
    ASSERT_TRUE(folder->write(name(1), page(1)).ok());
    fs::resize_file(file, cut);
    EXPECT_EQ(folder->read(name(1), found).code(), StatusCode::kUnavailable) << cut;
    EXPECT_FALSE(folder->contains(name(1).digest));
  }
}

TEST_F(PageFolderTest, AFileUnderAnotherNameIsNotItsPage) {
  auto folder = open();
  ASSERT_TRUE(folder->write(name(1), page(1)).ok());
  const fs::path one = files().at(0);
  ASSERT_TRUE(folder->write(name(2), page(2)).ok());
  fs::path two;
  for (const fs::path& file : files()) two = file == one ? two : file;
  fs::copy_file(one, two, fs::copy_options::overwrite_existing);
  std::vector<std::byte> found(kBytes);
  EXPECT_EQ(folder->read(name(2), found).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(folder->read(name(1), found).ok());
  fs::create_symlink(one, two);
  EXPECT_FALSE(folder->read(name(2), found).ok());
}

TEST_F(PageFolderTest, AboveTheLimitTheLongestUnusedGo) {
  const uint64_t each = [&] {
    auto folder = open();
    EXPECT_TRUE(folder->write(name(0), page(0)).ok());
    return folder->bytes();
  }();
  auto folder = open(10 * each);
  for (int32_t i = 1; i < 10; ++i) {
    ASSERT_TRUE(folder->write(name(i), page(i)).ok());
    timespec used[2] = {{1000 + i, 0}, {1000 + i, 0}};
    for (const fs::path& file : files()) {
      if (fs::last_write_time(file) > fs::file_time_type::clock::now() - std::chrono::hours(1)) {
        ::utimensat(AT_FDCWD, file.c_str(), used, 0);
      }
    }
  }
  std::vector<std::byte> found(kBytes);
  ASSERT_TRUE(folder->read(name(1), found).ok()) << "used now";
  EXPECT_TRUE(folder->mark_used(name(2).digest));
  ASSERT_TRUE(folder->write(name(10), page(10)).ok());
  EXPECT_LE(folder->bytes(), 9 * each);
  EXPECT_TRUE(folder->contains(name(1).digest));
  EXPECT_TRUE(folder->contains(name(2).digest));
  EXPECT_TRUE(folder->contains(name(10).digest));
  EXPECT_FALSE(folder->contains(name(3).digest)) << "the oldest";
  EXPECT_TRUE(folder->contains(name(9).digest));
  EXPECT_FALSE(folder->mark_used(name(3).digest));
}

// The user may name a folder that holds something else too.
TEST_F(PageFolderTest, OtherFilesAreLeftAlone) {
  ASSERT_TRUE(open()->write(name(0), page(0)).ok());
  const fs::path saved = files().at(0);
  const std::string digits = saved.filename();
  const std::vector<std::string> others = {
      "notes.txt",          "aa/notes.txt",   "photos/2024/" + digits, "photos/" + digits, digits,
      "aa/" + digits + "0", "a0/0/" + digits, "unfinished-novel.txt",  "aa/unfinished-1-0"};
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  for (const std::string& other : others) {
    const fs::path file = fs::path(path_) / other;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << std::string(1000, 'x');
    ::utimensat(AT_FDCWD, file.c_str(), old, 0);
  }
  EXPECT_EQ(open()->bytes(), fs::file_size(saved)) << "others count for nothing";
  EXPECT_EQ(open(1)->bytes(), 0u);
  EXPECT_FALSE(fs::exists(saved));
  for (const std::string& other : others) EXPECT_TRUE(fs::exists(fs::path(path_) / other)) << other;
}

TEST_F(PageFolderTest, WhatAProcessLeftUnfinishedIsRemovedLater) {
  open();
  const std::string fresh = path_ + "/unfinished-1-0", stale = path_ + "/unfinished-1-1";
  for (const std::string& file : {fresh, stale}) std::ofstream(file) << "x";
  const timespec old[2] = {{1000, 0}, {1000, 0}};
  ::utimensat(AT_FDCWD, stale.c_str(), old, 0);
  open();
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(stale));
}

// Two containers with one folder: each server is process 1, and none may take the other's file for its own.
TEST_F(PageFolderTest, AProcessOfTheSameNumberCostsNothing) {
  auto folder = open();
  std::vector<std::string> others;
  for (int i = 0; i < 3; ++i) others.push_back(fmt::format("{}/unfinished-{}-{}", path_, ::getpid(), i));
  for (const std::string& file : others) std::ofstream(file) << "x";
  const Status saved = folder->write(name(1), page(1));
  EXPECT_TRUE(saved.ok()) << saved.to_string();
  EXPECT_TRUE(folder->contains(name(1).digest));
  for (const std::string& file : others) EXPECT_TRUE(fs::exists(file)) << file;
}

TEST_F(PageFolderTest, FoldersThatOthersMayReadAreRefused) {
  open();
  ::chmod(path_.c_str(), 0750);
  const auto refused = PageFolder::open(path_, kRoomy);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("mode 0750; wanted 0700"), std::string::npos) << refused.status().message();
  fs::remove_all(path_);
  std::ofstream(path_) << "a file";
  EXPECT_EQ(PageFolder::open(path_, kRoomy).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::kv_disk
