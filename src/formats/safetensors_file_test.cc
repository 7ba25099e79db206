#include "formats/safetensors_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "formats/testing/test_files.h"
#include "formats/weights.h"

namespace millrace {
namespace {

using test_files::TempDir;

std::span<const std::byte> bytes_of(const std::vector<uint8_t>& values) { return std::as_bytes(std::span(values)); }

TEST(SafetensorsFile, WhatIsWrittenIsRead) {
  const TempDir dir;
  const std::string path = dir.file("a.safetensors");
  const std::vector<SafetensorsEntry> tensors = {{.name = "b \"1\"", .dtype = DType::kBF16, .shape = {2, 3}},
                                                 {.name = "none", .dtype = DType::kF32, .shape = {0, 4}},
                                                 {.name = "a", .dtype = DType::kF32, .shape = {1}}};
  auto file = SafetensorsFile::create(path, tensors);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  std::vector<uint8_t> first(12), second = {9, 8, 7, 6};
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<uint8_t>(i);
  ASSERT_TRUE(file->write(bytes_of(first).subspan(0, 5)).ok());
  ASSERT_TRUE(file->write(bytes_of(first).subspan(5)).ok());
  ASSERT_TRUE(file->write(bytes_of(second)).ok());
  ASSERT_TRUE(file->finish().ok());

  auto store = WeightStore::open_file(path);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_EQ(store->names(), (std::vector<std::string>{"a", "b \"1\"", "none"}));
  const TensorView b = *store->get_any("b \"1\"");
  EXPECT_TRUE(b.dtype == DType::kBF16 && b.shape == (Shape{2, 3}));
  EXPECT_EQ(std::memcmp(b.data, first.data(), first.size()), 0);
  EXPECT_EQ(std::memcmp(store->get_any("a")->data, second.data(), second.size()), 0);
  EXPECT_EQ(store->get_any("none")->shape, (Shape{0, 4}));
}

TEST(SafetensorsFile, TheHeaderEndsAtEightBytes) {
  for (const char* name : {"a", "ab", "abc", "abcdefgh"}) {
    EXPECT_EQ(safetensors_header({{.name = name, .shape = {1}}}).size() % 8, 0u) << name;
  }
}

TEST(SafetensorsFile, NothingIsOverwritten) {
  const TempDir dir;
  const std::string path = dir.write("a.safetensors", "mine");
  EXPECT_EQ(SafetensorsFile::create(path, {}).status().code(), StatusCode::kConflict);
  EXPECT_EQ(SafetensorsFile::create(dir.file("none/a"), {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(copy_to_disk(path, path).code(), StatusCode::kConflict);
  EXPECT_EQ(copy_to_disk(dir.file("none"), dir.file("b")).code(), StatusCode::kNotFound);
  ASSERT_TRUE(copy_to_disk(path, dir.file("b")).ok());
  EXPECT_EQ(*read_small_file(dir.file("b"), 100), "mine");
}

}  // namespace
}  // namespace millrace
