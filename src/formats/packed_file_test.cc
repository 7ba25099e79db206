// Packed files: what was written is read, whatever was changed is noticed, and no writer leaves half a file.
#include "formats/packed_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <thread>

#include "formats/safetensors.h"
#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using test_files::expect_message;
using test_files::read_file;
using test_files::TempDir;

constexpr const char* kKey = "0123456789abcdef";

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::vector<std::byte> out(size);
  for (std::size_t i = 0; i < size; ++i) {
    seed = seed * 1664525 + 1013904223;
    out[i] = static_cast<std::byte>(seed >> 24);
  }
  return out;
}

struct Content {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<PackedRun> runs;

  explicit Content(const std::vector<std::size_t>& sizes, unsigned seed = 1) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      bytes.push_back(pattern(sizes[i], seed + static_cast<unsigned>(i)));
      runs.push_back({"run " + std::to_string(i) + " \"quoted\"", "made-of-" + std::to_string(i), bytes.back()});
    }
  }
};

Status write(const std::string& path, const Content& content, const std::string& key = kKey) {
  ThreadPool pool(1);
  return write_packed_file(path, key, "source", content.runs, pool);
}

// What a reader may see of `content` in the file: for each run its bytes or nothing. A wrong byte fails the test.
std::size_t read_back(const std::string& path, const Content& content, ThreadPool& pool) {
  const auto file = PackedFile::open(path, kKey);
  if (!file.ok()) return 0;
  std::size_t found = 0;
  for (const PackedRun& wanted : content.runs) {
    const PackedFile::Run* run = file->find(wanted.name);
    if (run == nullptr || run->made_of != wanted.made_of || run->size_bytes != wanted.bytes.size()) continue;
    std::vector<std::byte> bytes(run->size_bytes);
    if (!file->read_run(wanted.name, *run, bytes, pool).ok()) continue;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.bytes.begin())) << path;
    ++found;
  }
  return found;
}

TEST(PackedFile, HoldsWhatWasWritten) {
  TempDir dir;
  const Content content({0, 1, 64, (3u << 20) + 5, 1u << 20});
  const std::string path = dir.file("new/a.packed");
  ASSERT_TRUE(write(path, content).ok());
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_EQ(read_back(path, content, pool), content.runs.size());
  }
  const auto file = PackedFile::open(path, kKey);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file->source(), "source");
  EXPECT_EQ(file->find("run 9"), nullptr);
  // It is a safetensors file, as its reader, which has an oracle, sees it.
  const auto mapped = MappedFile::open(path);
  ASSERT_TRUE(mapped.ok());
  const auto header = parse_safetensors(mapped->bytes(), path);
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  ASSERT_EQ(header->tensors.size(), content.runs.size());
  for (const SafetensorsEntry& entry : header->tensors) {
    const auto run = std::find_if(content.runs.begin(), content.runs.end(),
                                  [&](const PackedRun& r) { return r.name == entry.name; });
    ASSERT_NE(run, content.runs.end());
    const auto bytes = mapped->bytes().subspan(header->data_start + entry.begin, entry.end - entry.begin);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), run->bytes.begin(), run->bytes.end()));
  }
}

TEST(PackedFile, AnyChangedByteIsNoticed) {
  TempDir dir;
  const Content content({70, 3, 200});
  const std::string intact = dir.file("intact.packed"), path = dir.file("a.packed");
  ASSERT_TRUE(write(intact, content).ok());
  std::ifstream stream(intact, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  ThreadPool pool(1);
  std::size_t still_read = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      dir.write("a.packed", changed);
      still_read += read_back(path, content, pool) == content.runs.size();
    }
  }
  // Only what no checksum covers: the name of the source, and spaces behind the header that become other white space.
  EXPECT_LE(still_read, 2 * 6 + 64u);
  for (std::size_t size = 0; size < text.size(); size += 7) {
    dir.write("a.packed", text.substr(0, size));
    EXPECT_EQ(read_back(path, content, pool), 0u) << size;
  }
}

TEST(PackedFile, RunsDoNotStandForEachOther) {
  TempDir dir;
  const Content content({64, 64});
  const std::string path = dir.file("a.packed");
  ASSERT_TRUE(write(path, content).ok());
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), {});
  ThreadPool pool(1);
  // The two names change places where they name bytes; all checksums of bytes alone would still be right.
  const std::string a = R"("run 0 \"quoted\"":{)", b = R"("run 1 \"quoted\"":{)";
  const std::size_t at_a = text.find(a), at_b = text.find(b);
  ASSERT_TRUE(at_a != std::string::npos && at_b != std::string::npos);
  text.replace(at_a, a.size(), b);
  text.replace(at_b, b.size(), a);
  dir.write("a.packed", text);
  ASSERT_TRUE(PackedFile::open(path, kKey).ok());
  EXPECT_EQ(read_back(path, content, pool), 0u);
}

TEST(PackedFile, ReportsWhatIsWrong) {
  TempDir dir;
  const std::string path = dir.file("a.packed");
  EXPECT_EQ(PackedFile::open(path, kKey).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write(path, Content({10})).ok());
  expect_message(PackedFile::open(path, "another").status().message(), {path, kKey, "wanted another"});
  dir.write("a.packed", test_files::f32_file({{"w", {1, 2}}}));
  expect_message(PackedFile::open(path, kKey).status().message(), {path, "format", std::string(kPackedFormat)});
  dir.write("a.packed", "GGUF and more than eight bytes");
  expect_message(PackedFile::open(path, kKey).status().message(), {path, "not a safetensors file"});
  dir.write("a.packed",
            test_files::pack(R"({"__metadata__":{"format":"millrace-packed-1","key":")" + std::string(kKey) +
                                 R"("},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                             "xx"));
  expect_message(PackedFile::open(path, kKey).status().message(), {path, "\"w\"", "wanted", "checksum"});
}

TEST(PackedFile, OneOfSeveralWritersWrites) {
  TempDir dir;
  const std::string path = dir.file("a.packed"), part = path + ".part";
  const Content old({100}, 1), fresh({100}, 7);
  ASSERT_TRUE(write(path, old).ok());
  const int fd = ::open(part.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const Status refused = write(path, fresh);
  EXPECT_EQ(refused.code(), StatusCode::kConflict);
  expect_message(refused.message(), {part, "another process"});
  EXPECT_TRUE(trim_packed_files(dir.path(), 8).empty()) << "a part that is being written stays";
  ThreadPool pool(1);
  EXPECT_EQ(read_back(path, old, pool), 1u);
  // It dies in the middle: what it has left is taken over.
  const std::string cut = read_file(path).substr(0, 200);
  ASSERT_EQ(::write(fd, cut.data(), cut.size()), 200);
  ::close(fd);
  ASSERT_TRUE(write(path, fresh).ok());
  EXPECT_EQ(read_back(path, fresh, pool), 1u);
  EXPECT_FALSE(std::filesystem::exists(part));
}

TEST(PackedFile, ReadersSeeOneOfTheFilesWhileManyWrite) {
  TempDir dir;
  const std::string path = dir.file("a.packed");
  const Content one({5000, 3u << 20}, 1), two({5000, 3u << 20}, 9);
  ASSERT_TRUE(write(path, one).ok());
  std::atomic<int> written{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) written += write(path, (round + i) % 2 == 0 ? one : two).ok();
    });
  }
  ThreadPool pool(1);
  for (int round = 0; round < 50; ++round) {
    const auto file = PackedFile::open(path, kKey);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    const PackedFile::Run* run = file->find(one.runs[1].name);
    ASSERT_NE(run, nullptr);
    std::vector<std::byte> bytes(run->size_bytes);
    ASSERT_TRUE(file->read_run(one.runs[1].name, *run, bytes, pool).ok());
    EXPECT_TRUE(bytes == one.bytes[1] || bytes == two.bytes[1]);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GE(written.load(), 1);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

TEST(PackedFile, APartThatIsNotTheCachesIsNotOverwritten) {
  TempDir dir;
  dir.write("a.packed.part", "notes of the user");
  const Status refused = write(dir.file("a.packed"), Content({10}));
  EXPECT_EQ(refused.code(), StatusCode::kConflict);
  expect_message(refused.message(), {"a.packed.part", "removed"});
  EXPECT_EQ(read_file(dir.file("a.packed.part")), "notes of the user");
}

// A limit on the size of files stands for a full disk.
TEST(PackedFile, NoSpaceLeavesTheOldFile) {
  TempDir dir;
  const std::string path = dir.file("a.packed");
  const Content old({100}, 1), large({1u << 20}, 2);
  ASSERT_TRUE(write(path, old).ok());
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit less { 64u << 10, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &less), 0);
  const Status full = write(path, large);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.to_string();
  expect_message(full.message(), {path, "bytes"});
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  ThreadPool pool(1);
  EXPECT_EQ(read_back(path, old, pool), 1u);
}

TEST(PackedFile, AFolderThatCannotBeWritten) {
  TempDir dir;
  dir.write("file", "x");
  expect_message(write(dir.file("file") + "/a.packed", Content({10})).message(), {dir.file("file"), "cannot"});
  expect_message(write("/proc/self/a.packed", Content({10})).message(), {"/proc/self/a.packed", "cannot make it"});
}

TEST(PackedFile, TrimKeepsTheLastUsed) {
  TempDir dir;
  for (int i = 0; i < 5; ++i) {
    const std::string path = dir.file(std::to_string(i) + ".packed");
    ASSERT_TRUE(write(path, Content({10})).ok());
    const struct timespec times[2] = {{1000 + i, 0}, {1000 + i, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  dir.write("left.packed.part", read_file(dir.file("0.packed")).substr(0, 100));
  dir.write("model.safetensors", "x");
  // Files of the user in the same folder.
  dir.write("results.packed", "x");
  dir.write("results.packed.part", "x");
  dir.write("empty.packed", "");
  mark_packed_file_used(dir.file("1.packed"));
  std::vector<std::string> removed = trim_packed_files(dir.path(), 2);
  std::sort(removed.begin(), removed.end());
  EXPECT_EQ(removed, (std::vector<std::string>{dir.file("0.packed"), dir.file("2.packed"), dir.file("3.packed"),
                                               dir.file("left.packed.part")}));
  for (const char* name :
       {"1.packed", "4.packed", "model.safetensors", "results.packed", "results.packed.part", "empty.packed"}) {
    EXPECT_TRUE(std::filesystem::exists(dir.file(name))) << name;
  }
}

}  // namespace
}  // namespace millrace
