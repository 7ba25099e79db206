// The GGUF container against a file of the format's own Python package (tests/oracles/formats_gguf.py), and every way a
// file can be wrong.
#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "formats/gguf_writer.h"
#include "formats/mapped_file.h"
#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using nlohmann::json;
using test_files::as_bytes;
using test_files::expect_message;
using test_files::TempDir;

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/gguf/";

json element(const GgufValue& value, uint64_t i) {
  switch (value.type) {
    case GgufType::kString:
      return value.strings[i];
    case GgufType::kBool:
      return *value.integer(i) != 0;
    case GgufType::kF32:
    case GgufType::kF64:
      return *value.real(i);
    case GgufType::kU64: {
      uint64_t bits = 0;  // more than integer() can hold
      std::memcpy(&bits, value.bytes.data() + i * 8, 8);
      return bits;
    }
    default:
      return *value.integer(i);
  }
}

TEST(Gguf, ReadsEveryType) {
  const auto file = MappedFile::open(kGolden + "all_types.gguf");
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const auto header = parse_gguf(file->bytes(), file->path());
  ASSERT_TRUE(header.ok()) << header.status().to_string();
  const auto text = read_small_file(kGolden + "all_types.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const json golden = json::parse(*text);
  EXPECT_EQ(header->version, 3u);
  EXPECT_EQ(header->alignment, 64u);
  EXPECT_EQ(header->metadata.size(), golden["values"].size());
  for (const auto& [key, wanted] : golden["values"].items()) {
    const GgufValue* value = header->find(key);
    ASSERT_NE(value, nullptr) << key;
    EXPECT_EQ(value->is_array, wanted.is_array()) << key;
    json seen = json::array();
    for (uint64_t i = 0; i < value->count; ++i) seen.push_back(element(*value, i));
    EXPECT_EQ(wanted.is_array() ? seen : seen[0], wanted) << key;
  }
  EXPECT_EQ(header->find("one.uint64")->integer(), std::nullopt);
  EXPECT_EQ(header->find("one.int64")->real(), -0x1p62);
  ASSERT_EQ(header->tensors.size(), golden["tensors"].size());
  for (const auto& [name, wanted] : golden["tensors"].items()) {
    const GgufTensor* tensor = header->find_tensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(dtype_name(tensor->dtype), wanted["type"].get<std::string>());
    EXPECT_EQ(tensor->shape.to_string(), [&] {
      Shape shape;
      for (int64_t extent : wanted["shape"]) shape.push_back(extent);
      return shape.to_string();
    }());
    std::string hex;
    for (uint64_t at = tensor->begin; at < tensor->end; ++at) {
      hex += fmt::format("{:02x}", static_cast<unsigned>(file->bytes()[header->data_start + at]));
    }
    EXPECT_EQ(hex, wanted["hex"].get<std::string>()) << name;
  }
}

// A file byte by byte.
class Bytes {
 public:
  template <typename T>
  Bytes& put(T value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& string(std::string_view value) {
    put(static_cast<uint64_t>(value.size()));
    text.append(value);
    return *this;
  }
  Bytes& head(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
    text = "GGUF";
    return put(version).put(tensors).put(keys);
  }
  Bytes& u32_key(std::string_view key, uint32_t value) { return string(key).put(4u).put(value); }
  Bytes& tensor(std::string_view name, const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    string(name).put(static_cast<uint32_t>(extents.size()));
    for (uint64_t extent : extents) put(extent);
    return put(type).put(offset);
  }
  Bytes& pad(std::size_t alignment = 32) {
    text.resize((text.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  Bytes& data(std::size_t size) {
    text.append(size, 'x');
    return *this;
  }
  std::string text;
};

void expect_refused(const Bytes& bytes, const std::vector<std::string>& parts,
                    StatusCode code = StatusCode::kInvalidArgument) {
  const auto header = parse_gguf(as_bytes(bytes.text), "f.gguf");
  ASSERT_FALSE(header.ok()) << parts[0];
  EXPECT_EQ(header.status().code(), code) << header.status().to_string();
  expect_message(header.status().message(), {"f.gguf: ", "wanted"});
  expect_message(header.status().message(), parts);
}

TEST(Gguf, HeadersThatAreWrongAreRefused) {
  expect_refused(Bytes(), {"not a GGUF file: begins with \"\""});
  Bytes other;
  other.text = "PK\x03\x04 and so on, for long enough";
  expect_refused(other, {"not a GGUF file", "wanted \"GGUF\""});
  Bytes magic;
  magic.text = "GGUF";
  expect_refused(magic, {"breaks off in the version at byte 4", "wanted 4"});
  expect_refused(Bytes().head(0, 0, 1), {"version 1; wanted 2 or 3"}, StatusCode::kUnsupported);
  expect_refused(Bytes().head(0, 0, 0x03000000), {"big-endian"}, StatusCode::kUnsupported);
  expect_refused(Bytes().head(uint64_t{1} << 60, 0), {"1152921504606846976 tensors"}, StatusCode::kTooLarge);
  expect_refused(Bytes().head(0, UINT64_MAX), {"18446744073709551615 keys"}, StatusCode::kTooLarge);
  expect_refused(Bytes().head(1000, 0), {"1000 tensors and 0 keys, but 0 bytes are left"});
  EXPECT_TRUE(parse_gguf(as_bytes(Bytes().head(0, 0).text), "p").ok());
  EXPECT_TRUE(parse_gguf(as_bytes(Bytes().head(0, 0, 2).text), "p").ok());
}

TEST(Gguf, MetadataThatIsWrongIsRefused) {
  expect_refused(Bytes().head(0, 1).string("").put(4u).put(1u), {"key 0 is empty"});
  expect_refused(Bytes().head(0, 2).u32_key("a", 1).u32_key("a", 2), {"the key \"a\" twice"});
  expect_refused(Bytes().head(0, 1).put(uint64_t{70000}).data(90000), {"a key has 70000 bytes", "65535"},
                 StatusCode::kTooLarge);
  expect_refused(Bytes().head(0, 1).put(uint64_t{60000}).data(100), {"breaks off in a key", "60000"});
  expect_refused(Bytes().head(0, 1).string("k").put(13u).data(8), {"key \"k\": is of type 13; wanted 0 to 12"});
  expect_refused(Bytes().head(0, 1).string("k").put(7u).put(uint8_t{2}), {"key \"k\": holds the bool 2"});
  expect_refused(Bytes().head(0, 1).string("k").put(8u).put(UINT64_MAX), {"a string has 18446744073709551615 bytes"},
                 StatusCode::kTooLarge);
  expect_refused(Bytes().head(0, 1).string("k").put(8u).put(uint64_t{100}), {"breaks off in a string"});
  const auto array = [](uint32_t type, uint64_t count) {
    return Bytes().head(0, 1).string("k").put(9u).put(type).put(count);
  };
  expect_refused(array(9, 1).data(100), {"array of arrays"}, StatusCode::kUnsupported);
  expect_refused(array(99, 1).data(100), {"is of type 99"});
  expect_refused(array(10, UINT64_MAX), {"18446744073709551615 elements", "67108864"}, StatusCode::kTooLarge);
  expect_refused(array(10, 1000).data(7999), {"7999 bytes are left; wanted 8000"});
  expect_refused(array(8, 1000).data(7999), {"has 1000 strings, but 7999 bytes are left"});
  expect_refused(Bytes().head(0, 1).string("k").put(4u).put(uint16_t{1}), {"breaks off in a value", "wanted 4"});
  for (const uint32_t bad : {0u, 3u, 48u, 1u << 17}) {
    expect_refused(Bytes().head(0, 1).u32_key("general.alignment", bad),
                   {"general.alignment is " + std::to_string(bad), "a power of two"});
  }
  expect_refused(Bytes().head(0, 1).string("general.alignment").put(8u).string("32"),
                 {"general.alignment is of type string"});
}

TEST(Gguf, TensorsThatAreWrongAreRefused) {
  const auto one = [](const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset, std::size_t data) {
    return Bytes().head(1, 0).tensor("t", extents, type, offset).pad().data(data);
  };
  EXPECT_TRUE(parse_gguf(as_bytes(one({4, 2}, 0, 0, 32).text), "p").ok());
  expect_refused(one({4, 2}, 0, 0, 31), {"tensor \"t\" takes 32 bytes from 0; wanted at most 31"});
  expect_refused(one({4, 2}, 0, 32, 63), {"takes 32 bytes from 32; wanted at most 63"});
  expect_refused(one({4}, 0, UINT64_MAX - 31, 64), {"takes 16 bytes from 18446744073709551584"});
  expect_refused(one({4}, 0, 8, 64),
                 {"tensor \"t\": begins at 8; wanted a multiple of general.alignment, which is 32"});
  expect_refused(one({1, 1, 1, 1, 1}, 0, 0, 64), {"has 5 dimensions; wanted at most 4"});
  expect_refused(one({uint64_t{1} << 63}, 0, 0, 64), {"9223372036854775808 elements"});
  expect_refused(one({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0, 64), {"fits 63 bits"});
  expect_refused(one({uint64_t{1} << 62}, 28, 0, 64), {"fits 63 bits"});
  expect_refused(one({48}, 8, 0, 64), {"rows of 48 elements; wanted a multiple of 32, the block of Q8_0"});
  expect_refused(one({}, 2, 0, 64), {"rows of 1 elements; wanted a multiple of 32"});
  expect_refused(one({256}, 16, 0, 66), {"is of type IQ2_XXS; wanted F32, F16, BF16"}, StatusCode::kUnsupported);
  expect_refused(one({256}, 4, 0, 66), {"is of the unknown type 4"});
  expect_refused(one({256}, 999, 0, 66), {"is of the unknown type 999"});
  const auto two = [](std::string_view a, std::string_view b, uint64_t second) {
    return Bytes().head(2, 0).tensor(a, {16}, 0, 0).tensor(b, {8}, 0, second).pad().data(256);
  };
  EXPECT_TRUE(parse_gguf(as_bytes(two("a", "b", 64).text), "p").ok());
  expect_refused(two("a", "b", 32), {"tensor \"b\" begins at 32 and overlaps \"a\", which ends at 64"});
  expect_refused(two("a", "b", 0), {"overlaps"});
  expect_refused(two("a", "a", 64), {"has the tensor \"a\" twice"});
  expect_refused(two("a", "", 64), {"the name of tensor 1 is empty"});
  expect_refused(two("a", std::string(65, 'n'), 64), {"a tensor's name has 65 bytes", "64"}, StatusCode::kTooLarge);
}

TEST(Gguf, TypedReadsReportWhatIsWrong) {
  const std::string text =
      Bytes().head(0, 3).u32_key("n", 7).string("s").put(8u).string("x").string("f").put(6u).put(0.5f).text;
  const auto header = parse_gguf(as_bytes(text), "p");
  ASSERT_TRUE(header.ok());
  int64_t n = 0;
  double f = 0;
  bool b = false;
  std::string_view s;
  EXPECT_TRUE(gguf_read(*header, "n", std::nullopt, 0, 10, n).ok() && n == 7);
  EXPECT_TRUE(gguf_read(*header, "none", 3, 0, 10, n).ok() && n == 3);
  EXPECT_TRUE(gguf_read(*header, "n", std::nullopt, f).ok() && f == 7);
  EXPECT_TRUE(gguf_read(*header, "s", std::nullopt, s).ok() && s == "x");
  expect_message(gguf_read(*header, "n", std::nullopt, 8, 10, n).message(), {"n is 7; wanted 8 to 10"});
  expect_message(gguf_read(*header, "f", std::nullopt, 0, 10, n).message(),
                 {"f is of type f32; wanted a whole number"});
  expect_message(gguf_read(*header, "none", std::nullopt, 0, 10, n).message(), {"none is missing"});
  expect_message(gguf_read(*header, "s", std::nullopt, f).message(), {"s is of type string; wanted a number"});
  expect_message(gguf_read(*header, "n", std::nullopt, b).message(), {"n is of type u32; wanted bool"});
  expect_message(gguf_read(*header, "n", std::nullopt, s).message(), {"n is of type u32; wanted string"});
}

TEST(Gguf, MutationsNeverCrash) {
  const auto file = MappedFile::open(kGolden + "all_types.gguf", MapMode::kCopy);
  ASSERT_TRUE(file.ok());
  const std::string start(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::string text = start;
    if (random() % 4 == 0) text.resize(random() % text.size());
    for (unsigned edits = 1 + random() % 4; edits > 0 && !text.empty(); --edits) {
      text[random() % std::min<std::size_t>(text.size(), 2600)] = static_cast<char>(random() % 3 ? random() : 0xFF);
    }
    const auto header = parse_gguf(as_bytes(text), "p");
    if (!header.ok()) {
      expect_message(header.status().message(), {"p: "});
      continue;
    }
    for (const GgufTensor& tensor : header->tensors) {
      ASSERT_LE(header->data_start + tensor.end, text.size());
      ASSERT_EQ(tensor.end - tensor.begin, storage_bytes(tensor.dtype, tensor.shape.elements()));
    }
  }
}

// The golden file written again: the reader above is checked against the oracle, so it may report what was written.
TEST(GgufWriter, WritesWhatItRead) {
  const auto file = MappedFile::open(kGolden + "all_types.gguf");
  ASSERT_TRUE(file.ok());
  const auto header = parse_gguf(file->bytes(), "p");
  ASSERT_TRUE(header.ok());
  TempDir dir;
  GgufWriter writer;
  for (const auto& [key, value] : header->metadata) {
    if (key != "general.alignment") writer.add_value(key, value);
  }
  for (const GgufTensor& tensor : header->tensors) writer.add_tensor(tensor.name, tensor.dtype, tensor.shape);
  ASSERT_TRUE(writer.begin(dir.file("again.gguf")).ok());
  for (const GgufTensor& tensor : header->tensors) {
    const auto bytes = file->bytes().subspan(header->data_start + tensor.begin, tensor.end - tensor.begin);
    ASSERT_TRUE(writer.write(bytes.first(bytes.size() / 2)).ok());
    ASSERT_TRUE(writer.write(bytes.subspan(bytes.size() / 2)).ok());
  }
  EXPECT_FALSE(std::filesystem::exists(dir.file("again.gguf")));
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "no part is left";
  const auto copy = MappedFile::open(dir.file("again.gguf"));
  ASSERT_TRUE(copy.ok());
  const auto again = parse_gguf(copy->bytes(), "again");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->metadata.size() + 1, header->metadata.size());
  for (const auto& [key, value] : again->metadata) {
    const GgufValue* wanted = header->find(key);
    ASSERT_NE(wanted, nullptr) << key;
    EXPECT_EQ(value.type_text(), wanted->type_text());
    EXPECT_EQ(value.strings, wanted->strings);
    EXPECT_TRUE(std::equal(value.bytes.begin(), value.bytes.end(), wanted->bytes.begin(), wanted->bytes.end())) << key;
  }
  for (const GgufTensor& tensor : header->tensors) {
    const GgufTensor* seen = again->find_tensor(tensor.name);
    ASSERT_NE(seen, nullptr);
    EXPECT_TRUE(std::equal(file->bytes().begin() + static_cast<std::ptrdiff_t>(header->data_start + tensor.begin),
                           file->bytes().begin() + static_cast<std::ptrdiff_t>(header->data_start + tensor.end),
                           copy->bytes().begin() + static_cast<std::ptrdiff_t>(again->data_start + seen->begin)));
  }
  EXPECT_EQ(GgufWriter().begin("/nowhere/at/all.gguf").code(), StatusCode::kInvalidArgument);
}

TEST(GgufWriter, LeavesNothingWhereItEndsEarly) {
  TempDir dir;
  {
    GgufWriter writer;
    writer.add_tensor("t", DType::kF32, {4});
    ASSERT_TRUE(writer.begin(dir.file("x.gguf")).ok());
    EXPECT_FALSE(std::filesystem::is_empty(dir.path()));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(GgufWriter, LeavesFilesOfTheUserAlone) {
  TempDir dir;
  dir.write("x.gguf.part", "of the user");
  const auto finish = [&](GgufWriter::Existing existing, std::string_view while_writing) {
    GgufWriter writer;
    writer.add_tensor("t", DType::kF32, {4});
    EXPECT_TRUE(writer.begin(dir.file("x.gguf"), existing).ok());
    if (!while_writing.empty()) dir.write("x.gguf", while_writing);
    EXPECT_TRUE(writer.write(std::vector<std::byte>(16)).ok());
    return writer.finish();
  };
  const Status refused = finish(GgufWriter::Existing::kKeep, "made in the meantime");
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.to_string();
  EXPECT_EQ(test_files::read_file(dir.file("x.gguf")), "made in the meantime");
  EXPECT_TRUE(finish(GgufWriter::Existing::kReplace, "").ok());
  EXPECT_TRUE(test_files::read_file(dir.file("x.gguf")).starts_with("GGUF"));
  EXPECT_EQ(test_files::read_file(dir.file("x.gguf.part")), "of the user");
}

}  // namespace
}  // namespace millrace
