// Mapped files: what a caller sees, and what a file that changes under the mapping becomes.
#include "formats/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using test_files::expect_message;
using test_files::TempDir;

std::string text_of(const MappedFile& file) {
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes());
}

TEST(MappedFile, BothModesShowTheBytes) {
  TempDir dir;
  const std::string path = dir.write("a", "hello");
  for (MapMode mode : {MapMode::kMap, MapMode::kCopy}) {
    auto file = MappedFile::open(path, mode);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ(text_of(*file), "hello");
    EXPECT_TRUE(file->prefault().ok());
    MappedFile moved = std::move(*file);
    EXPECT_EQ(text_of(moved), "hello");
    EXPECT_EQ(file->size_bytes(), 0u);
    EXPECT_TRUE(moved.verify_unchanged().ok());
  }
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  TempDir dir;
  auto file = MappedFile::open(dir.write("empty", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->bytes().empty());
  EXPECT_TRUE(file->prefault().ok());
}

TEST(MappedFile, ErrorsNamePathAndReason) {
  TempDir dir;
  const auto status = [](const std::string& path, uint64_t limit = UINT64_MAX) {
    return MappedFile::open(path, MapMode::kMap, limit).status();
  };
  const std::string missing = dir.file("missing");
  EXPECT_EQ(status(missing).code(), StatusCode::kNotFound);
  expect_message(status(missing).message(), {missing, "cannot open", "No such file"});
  EXPECT_EQ(status(dir.path()).code(), StatusCode::kInvalidArgument);
  expect_message(status(dir.path()).message(), {dir.path(), "a directory", "wanted a regular file"});
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  EXPECT_EQ(status(dir.file("fifo")).code(), StatusCode::kInvalidArgument);
  const std::string big = dir.write("big", "123456");
  EXPECT_EQ(status(big, 5).code(), StatusCode::kTooLarge);
  expect_message(status(big, 5).message(), {big, "6 bytes", "at most 5"});
  EXPECT_EQ(read_small_file(big, 5).status().code(), StatusCode::kTooLarge);
  EXPECT_EQ(*read_small_file(big, 6), "123456");
}

TEST(MappedFile, WhatCannotBeLookedAtIsNoMissingFile) {
  TempDir dir;
  const std::string file = dir.write("file", "x"), loop = dir.file("loop");
  EXPECT_TRUE(*file_exists(file));
  EXPECT_FALSE(*file_exists(dir.file("missing")));
  EXPECT_FALSE(*file_exists(file + "/config.json"));
  ASSERT_EQ(::symlink(loop.c_str(), loop.c_str()), 0);
  expect_message(file_exists(loop).status().message(), {loop, "Too many levels of symbolic links"});
  EXPECT_FALSE(file_exists(dir.file(std::string(300, 'x'))).ok());
}

TEST(MappedFile, ProgressStartsAtZeroAndEndsAtAll) {
  TempDir dir;
  const uint64_t size = (20u << 20) + 5;
  auto file = MappedFile::open(dir.write("large", std::string(size, 'x')));
  ASSERT_TRUE(file.ok());
  std::vector<uint64_t> seen;
  ASSERT_TRUE(file->prefault([&](uint64_t done, uint64_t total) {
                    EXPECT_EQ(total, size);
                    seen.push_back(done);
                  })
                  .ok());
  ASSERT_GE(seen.size(), 3u);
  EXPECT_EQ(seen.front(), 0u);
  EXPECT_EQ(seen.back(), size);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(MappedFile, ATruncationAfterMappingIsAnErrorAndNoSignal) {
  TempDir dir;
  const std::string path = dir.write("shrinks", std::string(1 << 20, 'x'));
  auto mapped = MappedFile::open(path);
  auto copied = MappedFile::open(path, MapMode::kCopy);
  ASSERT_TRUE(mapped.ok() && copied.ok());
  ASSERT_EQ(::truncate(path.c_str(), 4096), 0);
  for (const Status& status : {mapped->prefault(), mapped->verify_unchanged(), copied->verify_unchanged()}) {
    EXPECT_EQ(status.code(), StatusCode::kConflict);
    expect_message(status.message(), {path, "shrank", "4096", "wanted 1048576"});
  }
  EXPECT_EQ(text_of(*copied), std::string(1 << 20, 'x'));
}

TEST(MappedFile, AGrownRewrittenOrReplacedFileIsNoticed) {
  TempDir dir;
  const std::string path = dir.write("grows", "12345");
  auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok());
  dir.write("grows", "123456");
  EXPECT_EQ(file->verify_unchanged().code(), StatusCode::kConflict);

  const std::string other = dir.write("replaced", "12345");
  auto old = MappedFile::open(other);
  ASSERT_TRUE(old.ok());
  std::filesystem::rename(dir.write("new", "54321"), other);
  const Status status = old->verify_unchanged();
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  expect_message(status.message(), {other, "replaced"});
  EXPECT_EQ(text_of(*old), "12345");
}

}  // namespace
}  // namespace millrace
