// A model read from a packed cache is the model without it, bit for bit, for every type of weights; and a cache that is
// broken, of other weights or of another build is as good as none.
#include "models/packed_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <thread>

#include "formats/testing/test_files.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

const std::string kSource = MILLRACE_SOURCE_DIR;

struct Loaded {
  std::vector<float> logits;
  std::size_t packed = 0;  // matrices that the cache did not have
  bool known = false;      // the model's files, without reading them
  std::string file;
};

// Empty `cache`: without one.
Loaded load(const std::string& path, kernels::Isa isa, std::optional<DType> quantize, const std::string& cache = "") {
  Loaded out;
  ThreadPool pool(2);
  const auto dir = open_model_dir(path);
  auto opened = WeightStore::open(path);
  EXPECT_TRUE(dir.ok() && opened.ok()) << path;
  if (!dir.ok() || !opened.ok()) return out;
  auto store = std::make_shared<WeightStore>(std::move(opened).value());
  LoadOptions options{.pool = &pool, .isa = isa, .quantize = quantize};
  std::optional<PackedCache> packed;
  if (!cache.empty()) {
    packed.emplace(cache, "a model", *store, options);
    options.packed_cache = &*packed;
  }
  auto model = load_model(dir->config, store, 1, options);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return out;
  EXPECT_TRUE(store->load_with_progress({}).ok());
  if (packed) {
    packed->save();
    out.packed = packed->packed();
    out.known = packed->same_files();
    out.file = packed->path();
  }
  std::vector<int32_t> prompt;
  for (int i = 0; i < 9; ++i) prompt.push_back(i * 37 % (*model)->config().vocab_size);
  SequenceEngine engine(*model, isa, 2, 16, 16);
  out.logits = engine.logits(prompt, 0);
  return out;
}

// Also where NaN meets NaN.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

kernels::Isa best_isa() {
  const auto isa = kernels::resolve_isa();
  CHECK(isa.ok());
  return *isa == kernels::Isa::kRef ? kernels::Isa::kGeneric : *isa;
}

struct Case {
  std::string name, path;
  std::optional<DType> quantize;
};

std::vector<Case> cases() {
  const std::string models = kSource + "/tests/golden/models/";
  std::vector<Case> out = {{"gguf_f16", kSource + "/tests/golden/formats/gguf/llama.gguf", {}},
                           {"gguf_kquants", kSource + "/tests/golden/e2e/kquants.gguf", {}}};
  // Stored in f16, bf16 and f32; a mixture of experts; shards.
  for (const char* model :
       {"tiny_llama_linear", "tiny_llama3_scaled", "tiny_qwen3", "tiny_qwen3_moe", "tiny_qwen3_sharded"}) {
    out.push_back({std::string(model) + "_stored", models + model, {}});
    out.push_back({std::string(model) + "_q8_0", models + model, DType::kQ8_0});
    out.push_back({std::string(model) + "_q4_0", models + model, DType::kQ4_0});
  }
  return out;
}

class PackedCacheTest : public testing::TestWithParam<Case> {};

TEST_P(PackedCacheTest, TheSameBits) {
  const auto& [name, path, quantize] = GetParam();
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (isa == kernels::Isa::kRef || !kernels::isa_available(isa)) continue;
    SCOPED_TRACE(kernels::isa_name(isa));
    TempDir dir;
    const std::vector<float> wanted = load(path, isa, quantize).logits;
    const Loaded first = load(path, isa, quantize, dir.path());
    EXPECT_GT(first.packed, 0u);
    expect_same_bits(first.logits, wanted);
    const Loaded second = load(path, isa, quantize, dir.path());
    EXPECT_EQ(second.packed, 0u);
    expect_same_bits(second.logits, wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, PackedCacheTest, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// A model that a test may change.
class ChangingModel : public testing::Test {
 protected:
  ChangingModel() {
    fs::copy(kSource + "/tests/golden/models/tiny_qwen3", model(), fs::copy_options::recursive);
    fs::permissions(weights(), fs::perms::owner_all);
  }
  std::string model() const { return dir_.file("model"); }
  std::string weights() const { return model() + "/model.safetensors"; }
  std::string cache() const { return dir_.file("cache"); }
  Loaded load_cached(std::optional<DType> quantize = DType::kQ8_0) {
    return load(model(), best_isa(), quantize, cache());
  }
  std::vector<float> wanted() { return load(model(), best_isa(), DType::kQ8_0).logits; }

  // Changes one element of a matrix, size and times kept as far as a program can.
  void change_one_weight() {
    struct stat info {};
    ASSERT_EQ(::stat(weights().c_str(), &info), 0);
    const auto file = MappedFile::open(weights());
    ASSERT_TRUE(file.ok());
    const auto header = parse_safetensors(file->bytes(), weights());
    ASSERT_TRUE(header.ok());
    const auto matrix = std::find_if(header->tensors.begin(), header->tensors.end(), [](const SafetensorsEntry& entry) {
      return entry.name == "model.layers.0.mlp.up_proj.weight";
    });
    ASSERT_NE(matrix, header->tensors.end());
    flip(weights(), static_cast<off_t>(header->data_start + matrix->end - 1), 0x40);
    const struct timespec times[2] = {info.st_atim, info.st_mtim};
    ASSERT_EQ(::utimensat(AT_FDCWD, weights().c_str(), times, 0), 0);
  }
  static void flip(const std::string& path, off_t at, int bits) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ bits));
    ASSERT_TRUE(file.good());
  }
  static void settle() { std::this_thread::sleep_for(std::chrono::nanoseconds(kStampSettledNs + 100'000'000)); }

  TempDir dir_;
};

TEST_F(ChangingModel, ACopyIsKnownByItsBytes) {
  EXPECT_GT(load_cached().packed, 0u);  // of files too young to be known again by their times
  fs::rename(model(), dir_.file("before"));
  fs::copy(dir_.file("before"), model(), fs::copy_options::recursive);
  const Loaded copy = load_cached();
  EXPECT_EQ(copy.packed, 0u);
  EXPECT_FALSE(copy.known);
  expect_same_bits(copy.logits, wanted());
}

TEST_F(ChangingModel, OneChangedWeightIsPackedAgain) {
  settle();
  EXPECT_GT(load_cached().packed, 0u);
  EXPECT_TRUE(load_cached().known);
  const std::vector<float> before = wanted();
  change_one_weight();
  ASSERT_NE(wanted(), before) << "the change does not show";
  const Loaded changed = load_cached();
  EXPECT_EQ(changed.packed, 1u);
  EXPECT_FALSE(changed.known);
  expect_same_bits(changed.logits, wanted());
  const Loaded again = load_cached();
  EXPECT_EQ(again.packed, 0u);
  expect_same_bits(again.logits, wanted());
}

TEST_F(ChangingModel, AnotherQuantizationIsAnotherFile) {
  const Loaded q8 = load_cached(), q4 = load_cached(DType::kQ4_0), stored = load_cached(std::nullopt);
  EXPECT_TRUE(q8.file != q4.file && q4.file != stored.file && q8.file != stored.file);
  EXPECT_GT(q4.packed, 0u);
  EXPECT_GT(stored.packed, 0u);
  EXPECT_EQ(load_cached().packed, 0u);
  EXPECT_EQ(load_cached(DType::kQ4_0).packed, 0u);
}

TEST_F(ChangingModel, ABrokenFileIsReplaced) {
  const Loaded first = load_cached();
  const auto size = static_cast<off_t>(fs::file_size(first.file));
  const std::vector<float> bits = wanted();
  struct Damage {
    const char* name;
    std::function<void()> make;
    bool all;  // nothing of the file is of use
  };
  const std::vector<Damage> damages = {
      {"a bit of the last matrix", [&] { flip(first.file, size - 100, 1); }, false},
      {"cut in the middle", [&] { fs::resize_file(first.file, static_cast<std::uintmax_t>(size / 2)); }, true},
      {"empty", [&] { fs::resize_file(first.file, 0); }, true},
      {"of another build", [&] { flip(first.file, 65, 1); }, true},
      {"of another program", [&] { fs::copy_file(weights(), first.file, fs::copy_options::overwrite_existing); }, true},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    damage.make();
    const Loaded seen = load_cached();
    EXPECT_EQ(seen.packed, damage.all ? first.packed : 1u);
    expect_same_bits(seen.logits, bits);
    const Loaded mended = load_cached();
    EXPECT_EQ(mended.packed, 0u);
    expect_same_bits(mended.logits, bits);
  }
}

TEST_F(ChangingModel, NoFolderIsNoError) {
  std::ofstream(cache()) << "a file where the folder should be";
  const Loaded loaded = load_cached();
  EXPECT_GT(loaded.packed, 0u);
  expect_same_bits(loaded.logits, wanted());
}

}  // namespace
}  // namespace millrace
