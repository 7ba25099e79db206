// Every malformed header is one clear line, never a crash, and never an allocation that the file does not back.
// Verdicts come from the reference reader: tests/oracles/formats_safetensors.py.
#include "formats/safetensors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "formats/mapped_file.h"
#include "formats/testing/test_files.h"

namespace {
std::size_t allocated_bytes = 0;
int64_t fail_countdown = -1;  // the allocation that brings it to 0 throws
}  // namespace

// NOLINTBEGIN: the whole program's allocations are counted, and one of them can be made to fail.
__attribute__((noinline)) void* operator new(std::size_t size) {
  allocated_bytes += size;
  if (fail_countdown > 0 && --fail_countdown == 0) throw std::bad_alloc();
  void* p = std::malloc(size ? size : 1);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept { std::free(p); }
// NOLINTEND

namespace millrace {
namespace {

using test_files::as_bytes;
using test_files::expect_message;
using test_files::pack;

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/";
constexpr std::size_t kMaxAllocationPerByte = 64;

std::string from_hex(const std::string& hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

nlohmann::json golden_json(const std::string& name) {
  auto text = read_small_file(kGolden + name, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  return nlohmann::json::parse(*text);
}

TEST(Safetensors, AgreesWithTheReferenceReader) {
  // Where this reader is stricter on purpose; safetensors.h has the reasons.
  const std::set<std::string> stricter = {"header starts with a space", "nine dimensions",
                                          "dtype of the format that has no use here"};
  int accepted = 0;
  int refused = 0;
  for (const auto& row : golden_json("cases.json")) {
    const std::string name = row["name"];
    const std::string file = from_hex(row["hex"]);
    const auto header = parse_safetensors(as_bytes(file), "some/model.safetensors");
    EXPECT_EQ(header.ok(), row["accepted"].get<bool>() && !stricter.contains(name))
        << name << ": " << header.status().to_string();
    ++(header.ok() ? accepted : refused);
    if (!header.ok()) expect_message(header.status().message(), {"some/model.safetensors: "});
  }
  EXPECT_GE(accepted, 10);
  EXPECT_GE(refused, 50);
}

struct Bad {
  std::string header;
  std::size_t data_bytes;
  StatusCode code;
  std::vector<std::string> parts;
};

TEST(Safetensors, ErrorsNameTensorSeenAndWanted) {
  const std::string ok = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const auto bad = StatusCode::kInvalidArgument;
  const std::vector<Bad> cases = {
      {"[1]", 8, bad, {"starts with byte 0x5b", "wanted '{'"}},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, bad, {"\"w\"", "[8, 0]", "begin <= end"}},
      {R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 8, bad, {"\"w\"", "end at 16", "at most 8"}},
      {R"({"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,8]}})", 8, bad, {"\"w\"", "8 bytes", "12", "[2, 3]"}},
      {R"({"a":{)" + ok + R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12,
       bad,
       {"\"b\"", "overlaps \"a\"", "4", "8"}},
      {R"({"a":{)" + ok + R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
       20,
       bad,
       {"\"b\"", "12", "hole", "wanted 8"}},
      {"{\"a\":{" + ok + "}}", 11, bad, {"end at 8", "wanted 11"}},
      {R"({"w":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, bad, {"\"w\"", "\"F33\"", "BF16"}},
      {R"({"w":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]}})", 8, StatusCode::kUnsupported, {"F8_E4M3"}},
      {R"({"w":{"dtype":"F32","shape":[1099511627776,1099511627776],"data_offsets":[0,8]}})",
       8,
       bad,
       {"\"w\"", "overflows"}},
      {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, bad, {"shape of \"w\"", "-2", ">= 0"}},
      {R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]}})", 8, bad, {"\"w\"", "over 8 dim"}},
      {"{\"w\":{" + ok + "},\"w\":{" + ok + "}}", 8, bad, {"\"w\" stands twice"}},
      {"{\"w\":{" + ok + ",\"dtype\":\"F32\"}}", 8, bad, {"\"w\" has dtype twice"}},
      {"{\"w\":{" + ok + ",\"extra\":1}}", 8, bad, {"\"w\"", "\"extra\"", "wanted dtype, shape"}},
      {R"({"__metadata__":{"k":1},"w":{)" + ok + "}}", 8, bad, {"\"k\"", "1", "wanted a string"}},
      {R"({"__metadata__":{"k":"a","k":"b"}})", 0, bad, {"\"k\" twice"}},
      {"{\"w\":{" + ok + "}", 8, bad, {"header: malformed JSON at byte"}},
      {"{\"w\xff\":{" + ok + "}}", 8, bad, {"UTF-8", "byte 4"}},
      {"{\"evil\\n\\u001b[31m\":{}}", 8, bad, {"evil\\n\\u001b", "no dtype"}},
  };
  for (const Bad& c : cases) {
    const std::string file = pack(c.header, std::string(c.data_bytes, '\0'));
    const auto header = parse_safetensors(as_bytes(file), "dir/m.safetensors");
    ASSERT_FALSE(header.ok()) << c.header;
    EXPECT_EQ(header.status().code(), c.code) << header.status().to_string();
    expect_message(header.status().message(), {"dir/m.safetensors: ", "wanted"});
    expect_message(header.status().message(), c.parts);
  }
}

TEST(Safetensors, HeaderLengthLimits) {
  const auto parse = [](uint64_t length, std::size_t bytes) {
    std::string file(8 + bytes, '{');
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i) & 0xFF);
    return parse_safetensors(as_bytes(file), "p").status();
  };
  EXPECT_EQ(parse(0, 100).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(parse(101, 100).code(), StatusCode::kInvalidArgument);
  expect_message(parse(101, 100).message(), {"p: ", "101", "wanted 2 to 100"});
  expect_message(parse(kSafetensorsMaxHeaderBytes + 1, 100).message(), {"100000001", "at most 100000000"});
  EXPECT_EQ(parse(1ull << 63, 100).code(), StatusCode::kTooLarge);
  EXPECT_EQ(parse(UINT64_MAX, 100).code(), StatusCode::kTooLarge);
  expect_message(parse_safetensors({}, "p").status().message(), {"has 0 bytes", "at least 8"});
}

TEST(Safetensors, LongNamesAreClippedInMessages) {
  const std::string name(100000, 'x');
  const std::string file = pack("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})", "123456789");
  const auto header = parse_safetensors(as_bytes(file), "p");
  ASSERT_FALSE(header.ok());
  expect_message(header.status().message(), {"(100000 bytes)", "9 bytes", "wanted 8"});
}

TEST(Safetensors, ReadsWhatThePackageWrote) {
  auto file = MappedFile::open(kGolden + "all_dtypes.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  auto header = parse_safetensors(file->bytes(), file->path());
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->metadata.at("note"), "made by the package");
  const auto values = golden_json("values.json");
  EXPECT_EQ(header->tensors.size(), values.size());
  for (const SafetensorsEntry& entry : header->tensors) {
    ASSERT_TRUE(values.contains(entry.name)) << entry.name;
    const auto& shape = values[entry.name]["shape"];
    ASSERT_EQ(static_cast<std::size_t>(entry.shape.rank()), shape.size());
    for (int i = 0; i < entry.shape.rank(); ++i) EXPECT_EQ(entry.shape[i], shape[static_cast<std::size_t>(i)]);
  }
}

// A header with several tensors, metadata and escapes: the start of all mutations.
std::string rich_file() {
  std::string header = R"({"__metadata__":{"format":"pt","note":"a\u00e9"})";
  std::size_t at = 0;
  for (int i = 0; i < 6; ++i) {
    header += ",\"model.layers." + std::to_string(i) + R"(.weight":{"dtype":"BF16","shape":[4,)" +
              std::to_string(i + 1) + R"(],"data_offsets":[)" + std::to_string(at) + "," +
              std::to_string(at + 8 * (static_cast<std::size_t>(i) + 1)) + "]}";
    at += 8 * (static_cast<std::size_t>(i) + 1);
  }
  return pack(header + "}  ", std::string(at, '\1'));
}

TEST(Safetensors, MutationsNeverCrashAndNeverOverallocate) {
  const std::string start = rich_file();
  ASSERT_TRUE(parse_safetensors(as_bytes(start), "p").ok());
  const std::string alphabet = "{}[],:\"0123456789-.eE\\untrfalsF \xff\x80\xc3";
  std::mt19937 random(20261121);
  int valid = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string file = start;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % file.size();
      const char byte = random() % 8 == 0 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
      switch (random() % 5) {
        case 0:
          file[at] = byte;
          break;
        case 1:
          file.insert(at, 1, byte);
          break;
        case 2:
          file.erase(at, 1 + random() % 3);
          break;
        case 3:
          file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
          break;
        default:
          file.insert(at, file.substr(random() % file.size(), random() % 60));
          break;
      }
      if (file.size() < 9) file = start;
    }
    const std::size_t before = allocated_bytes;
    const auto header = parse_safetensors(as_bytes(file), "p");
    ASSERT_LE(allocated_bytes - before, kMaxAllocationPerByte * file.size() + 4096) << round;
    if (!header.ok()) {
      expect_message(header.status().message(), {"p: "});
      continue;
    }
    ++valid;
    uint64_t end = 0;
    for (const SafetensorsEntry& entry : header->tensors) {
      ASSERT_EQ(entry.begin, end);
      ASSERT_EQ(entry.end - entry.begin, static_cast<uint64_t>(entry.shape.elements()) * dtype_size(entry.dtype));
      end = entry.end;
    }
    ASSERT_EQ(header->data_start + end, file.size());
  }
  EXPECT_GT(valid, 10);
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const std::string start = rich_file();
  for (std::size_t n = 0; n < start.size(); ++n) {
    // An exact-size heap copy, so that a sanitizer sees a read past the end.
    const std::vector<std::byte> copy(as_bytes(start).begin(),
                                      as_bytes(start).begin() + static_cast<std::ptrdiff_t>(n));
    ASSERT_FALSE(parse_safetensors(copy, "p").ok()) << n;
  }
}

TEST(Safetensors, AnyAllocationMayFail) {
  const std::string start = rich_file();
  for (int64_t n = 1;; ++n) {
    fail_countdown = n;
    const auto header = parse_safetensors(as_bytes(start), "p");
    const bool reached = fail_countdown == 0;
    fail_countdown = -1;
    if (!reached) {
      EXPECT_TRUE(header.ok());
      EXPECT_GT(n, 10);
      break;
    }
    ASSERT_FALSE(header.ok()) << n;
    EXPECT_EQ(header.status().code(), StatusCode::kResourceExhausted) << header.status().to_string();
  }
}

}  // namespace
}  // namespace millrace
