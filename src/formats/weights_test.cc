// The weight store: single files, shards, every way an index can be wrong, and what get() refuses.
#include "formats/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/testing/test_files.h"

namespace millrace {
namespace {

using test_files::expect_message;
using test_files::f32_file;
using test_files::pack;
using test_files::TempDir;

const std::string kGolden = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/formats/";
constexpr const char* kIndex = "model.safetensors.index.json";

double element(const TensorView& view, std::size_t i) {
  switch (view.dtype) {
    case DType::kF32:
      return view.as<float>()[i];
    case DType::kF64:
      return view.as<double>()[i];
    case DType::kF16: {
      const uint16_t h = view.as<uint16_t>()[i];
      const int exponent = h >> 10 & 31;
      const double fraction = h & 1023;
      const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      return h >> 15 ? -size : size;
    }
    case DType::kBF16: {
      const uint32_t bits = static_cast<uint32_t>(view.as<uint16_t>()[i]) << 16;
      float f;
      std::memcpy(&f, &bits, 4);
      return f;
    }
    case DType::kI32:
      return view.as<int32_t>()[i];
    case DType::kI16:
      return view.as<int16_t>()[i];
    case DType::kI8:
      return view.as<int8_t>()[i];
    case DType::kU8:
    case DType::kBool:
      return view.as<uint8_t>()[i];
    case DType::kI64:
      return static_cast<double>(view.as<int64_t>()[i]);
    default:
      ADD_FAILURE() << "no element of " << dtype_name(view.dtype);
      return 0;
  }
}

TEST(WeightStore, ReadsEveryDTypeThatThePackageWrites) {
  auto text = read_small_file(kGolden + "values.json", 1 << 20);
  ASSERT_TRUE(text.ok());
  const auto values = nlohmann::json::parse(*text);
  for (MapMode mode : {MapMode::kMap, MapMode::kCopy}) {
    auto store = open_safetensors_file(kGolden + "all_dtypes.safetensors", mode);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    EXPECT_EQ(store->names().size(), values.size());
    for (const auto& [name, wanted] : values.items()) {
      auto view = store->get_any(name);
      ASSERT_TRUE(view.ok()) << name;
      ASSERT_EQ(static_cast<std::size_t>(view->shape.elements()), wanted["values"].size()) << name;
      for (std::size_t i = 0; i < wanted["values"].size(); ++i) {
        EXPECT_EQ(element(*view, i), wanted["values"][i].get<double>()) << name << " " << i;
      }
    }
    EXPECT_TRUE(store->unexpected({}).empty());
    EXPECT_TRUE(store->check_finite().ok());
  }
}

TEST(WeightStore, ReadsShardsThatThePackageWrote) {
  auto store = WeightStore::open(kGolden + "sharded");
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_EQ(store->shard_count(), 3u);
  EXPECT_EQ(store->total_bytes(), 96u);
  EXPECT_EQ(store->total_elements(), 24);
  uint64_t last = 0;
  uint64_t all = 1;
  ASSERT_TRUE(store->load_with_progress([&](uint64_t done, uint64_t total) { last = done, all = total; }).ok());
  EXPECT_EQ(last, all);
  for (int shard = 0; shard < 3; ++shard) {
    auto weight = store->get("layer." + std::to_string(shard) + ".weight", {4});
    ASSERT_TRUE(weight.ok());
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(weight->as<float>()[i], static_cast<float>(10 * shard) + float(i));
  }
  EXPECT_EQ(store->unexpected({}), (std::vector<std::string>{"layer.0.bias", "layer.1.bias", "layer.2.bias"}));
  EXPECT_EQ(store->unexpected({".bias"}), std::vector<std::string>{});
  expect_message(store->check_all_taken({"layer.1.bias"}).message(),
                 {"00001-of-00003", "2 tensor(s)", "\"layer.0.bias\"", "\"layer.2.bias\"", "wanted none"});
  EXPECT_TRUE(store->check_all_taken({".bias"}).ok());
}

TEST(WeightStore, GetRefusesWhatIsMissing) {
  TempDir dir;
  const std::string path = dir.write("model.safetensors", f32_file({{"a.weight", {1, 2, 3}}}));
  auto store = WeightStore::open(dir.path());
  ASSERT_TRUE(store.ok());
  const Status missing = store->get("b.weight", {3}).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  expect_message(missing.message(), {path, "\"b.weight\"", "among the 1", "wanted it with shape [3]"});
  const Status shape = store->get("a.weight", {3, 1}).status();
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  expect_message(shape.message(), {path, "\"a.weight\"", "has shape [3]", "wanted [3, 1]"});
  EXPECT_EQ(store->unexpected({}).size(), 1u);

  dir.write("model.safetensors", pack(R"({"q":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  store = WeightStore::open(dir.path());
  ASSERT_TRUE(store.ok());
  const Status dtype = store->get("q", {2}).status();
  EXPECT_EQ(dtype.code(), StatusCode::kUnsupported);
  expect_message(dtype.message(), {path, "\"q\"", "I8", "wanted F32, F16 or BF16"});
}

TEST(WeightStore, MisalignedTensorsBecomeAligned) {
  for (std::size_t pad = 0; pad < 8; ++pad) {
    TempDir dir;
    dir.write("model.safetensors", f32_file({{"w", {1.5f, -2.5f}}}, pad));
    auto opened = WeightStore::open(dir.path());
    ASSERT_TRUE(opened.ok());
    auto view = opened->get("w", {2});
    ASSERT_TRUE(view.ok());
    const WeightStore moved = std::move(*opened);  // views outlive a move of the store
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view->data) % 4, 0u);
    EXPECT_EQ(view->as<float>()[0], 1.5f);
    EXPECT_EQ(view->as<float>()[1], -2.5f);
  }
}

TEST(WeightStore, MissingFilesAndBadDirectories) {
  TempDir dir;
  const Status none = WeightStore::open(dir.path()).status();
  EXPECT_EQ(none.code(), StatusCode::kNotFound);
  expect_message(none.message(), {dir.path(), "model.safetensors", kIndex});
  const std::string path = dir.write("model.safetensors", "");
  expect_message(WeightStore::open(dir.path()).status().message(), {path, "has 0 bytes", "wanted at least 8"});
  const std::string complete = f32_file({{"w", std::vector<float>(100, 1.0f)}});
  for (std::size_t n = 0; n < complete.size(); n += 7) {
    dir.write("model.safetensors", complete.substr(0, n));
    const Status status = WeightStore::open(dir.path()).status();
    ASSERT_EQ(status.code(), StatusCode::kInvalidArgument) << n;
    expect_message(status.message(), {path, "wanted"});
  }
}

TEST(WeightStore, APathThatHoldsNoModelHasItsReason) {
  TempDir dir;
  const Status gone = WeightStore::open(dir.path() + "/misspelt").status();
  EXPECT_EQ(gone.code(), StatusCode::kNotFound);
  expect_message(gone.message(), {dir.path() + "/misspelt", "No such file or directory", "wanted"});
  const std::string page = dir.write("README.md", "# Words");
  const Status file = WeightStore::open(page).status();
  EXPECT_EQ(file.code(), StatusCode::kNotFound);
  expect_message(file.message(), {page, "another file", "*.gguf"});
}

struct BadIndex {
  std::string index;
  StatusCode code;
  std::vector<std::string> parts;
};

TEST(WeightStore, EveryWayAnIndexCanBeWrong) {
  TempDir dir;
  dir.write("x.safetensors", f32_file({{"a", {1}}, {"b", {2}}}));
  dir.write("y.safetensors", f32_file({{"b", {3}}, {"c", {4}}}));
  const auto bad = StatusCode::kInvalidArgument;
  const std::vector<BadIndex> cases = {
      {"{", bad, {"malformed JSON"}},
      {"[]", bad, {"weight_map"}},
      {"{}", bad, {"weight_map"}},
      {R"({"weight_map":[]})", bad, {"weight_map"}},
      {R"({"weight_map":{}})", bad, {"weight_map"}},
      {R"({"weight_map":{"a":1}})", bad, {"\"a\"", "integer", "wanted a shard's file name"}},
      {R"({"weight_map":{"a":"../x.safetensors"}})", bad, {"../x.safetensors", "path separators"}},
      {R"({"weight_map":{"a":"../../etc/passwd"}})", bad, {"../../etc/passwd", "path separators"}},
      {R"({"weight_map":{"a":"/etc/passwd"}})", bad, {"/etc/passwd"}},
      {R"({"weight_map":{"a":"sub/x.safetensors"}})", bad, {"sub/x.safetensors"}},
      {R"({"weight_map":{"a":"sub\\x.safetensors"}})", bad, {"path separators"}},
      {R"({"weight_map":{"a":"x.safetensors\u0000y.safetensors"}})", bad, {"path separators"}},
      {R"({"weight_map":{"a":"config.json"}})", bad, {"config.json", ".safetensors"}},
      {R"({"weight_map":{"a":""}})", bad, {"\"\""}},
      {R"({"weight_map":{"a":"gone.safetensors"}})", StatusCode::kNotFound, {"gone.safetensors", "missing"}},
      {R"({"weight_map":{"a":"x.safetensors","b":"x.safetensors","c":"y.safetensors"}})",
       bad,
       {"\"b\"", "x.safetensors", "y.safetensors", "one shard"}},
      {R"({"weight_map":{"a":"x.safetensors","z":"x.safetensors"}})", bad, {"\"z\"", "x.safetensors", "no shard"}},
      {R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})", bad, {"duplicate key"}},
  };
  for (const BadIndex& c : cases) {
    const std::string path = dir.write(kIndex, c.index);
    const auto store = WeightStore::open(dir.path());
    ASSERT_FALSE(store.ok()) << c.index;
    EXPECT_EQ(store.status().code(), c.code) << store.status().to_string();
    expect_message(store.status().message(), {dir.path()});
    expect_message(store.status().message(), c.parts);
  }
  // A total_size that is wrong is no error.
  dir.write(kIndex, R"({"metadata":{"total_size":1},"weight_map":{"a":"x.safetensors","b":"x.safetensors"}})");
  EXPECT_TRUE(WeightStore::open(dir.path()).ok());
}

TEST(WeightStore, AShardThatShrinksWhileLoadingIsAnError) {
  TempDir dir;
  const std::string path = dir.write("model.safetensors", f32_file({{"w", std::vector<float>(100000, 1.0f)}}));
  auto store = WeightStore::open(dir.path());
  ASSERT_TRUE(store.ok());
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  const Status status = store->load_with_progress({});
  EXPECT_EQ(status.code(), StatusCode::kConflict);
  expect_message(status.message(), {path, "shrank", "5000"});
}

TEST(WeightStore, FiniteCheckNamesTensorAndIndex) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float value : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    TempDir dir;
    const std::string path = dir.write("model.safetensors", f32_file({{"a", {1, 2}}, {"b", {1, 2, value}}}));
    auto store = WeightStore::open(dir.path());
    ASSERT_TRUE(store.ok());
    expect_message(store->check_finite().message(), {path, "\"b\"", "element 2", "F32 [3]", "wanted finite"});
  }
  // F16: 0x7C00 is infinity, 0x7BFF the largest number. BF16: 0xFF80 and 0xFF7F.
  const auto check = [](const std::string& dtype, std::string bytes) {
    TempDir dir;
    dir.write("model.safetensors",
              pack(R"({"h":{"dtype":")" + dtype + R"(","shape":[2],"data_offsets":[0,4]}})", bytes));
    auto store = WeightStore::open(dir.path());
    EXPECT_TRUE(store.ok());
    return store->check_finite().message();
  };
  EXPECT_EQ(check("F16", std::string("\xFF\x7B\x01\x00", 4)), "");
  expect_message(check("F16", std::string("\xFF\x7B\x00\x7C", 4)), {"\"h\"", "element 1", "F16"});
  EXPECT_EQ(check("BF16", std::string("\x7F\xFF\x01\x00", 4)), "");
  expect_message(check("BF16", std::string("\x80\xFF\x01\x00", 4)), {"\"h\"", "element 0", "BF16"});
}

}  // namespace
}  // namespace millrace
