// The checksum of a model's weights covers every byte that is read, and depends on nothing else: not on the processor,
// the threads, the quantization or a packed cache.
#include <gtest/gtest.h>

#include <fstream>

#include "formats/testing/test_files.h"
#include "models/matrix_checksum.h"
#include "models/packed_cache.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using test_files::TempDir;

const std::string kModels = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/models/";

struct How {
  kernels::Isa isa = kernels::Isa::kRef;
  int threads = 1;
  std::optional<DType> quantize{};
  std::string cache{};
};

uint64_t checksum_of(const std::string& path, const How& how) {
  ThreadPool pool(how.threads);
  const auto dir = open_model_dir(path);
  auto opened = WeightStore::open(path);
  EXPECT_TRUE(dir.ok() && opened.ok()) << path;
  auto store = std::make_shared<WeightStore>(std::move(opened).value());
  LoadOptions options{.pool = &pool, .isa = how.isa, .quantize = how.quantize};
  std::optional<PackedCache> packed;
  if (!how.cache.empty()) options.packed_cache = &packed.emplace(how.cache, "a model", *store, options);
  const auto model = load_model(dir->config, store, 1, options);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (packed) packed->save();
  return model.ok() ? (*model)->weights_checksum() : 0;
}

TEST(WeightsChecksumTest, IsOfTheFilesAlone) {
  for (const char* model : {"tiny_llama_linear", "tiny_qwen3", "tiny_qwen3_moe", "tiny_qwen3_sharded"}) {
    SCOPED_TRACE(model);
    const uint64_t wanted = checksum_of(kModels + model, {});
    EXPECT_NE(wanted, 0u);
    for (const kernels::Isa isa : kernels::kAllIsas) {
      if (!kernels::isa_available(isa)) continue;
      EXPECT_EQ(checksum_of(kModels + model, {.isa = isa, .threads = 3}), wanted);
      EXPECT_EQ(checksum_of(kModels + model, {.isa = isa, .quantize = DType::kQ4_0}), wanted);
      if (isa == kernels::Isa::kRef) continue;
      TempDir cache;
      EXPECT_EQ(checksum_of(kModels + model, {.isa = isa, .cache = cache.path()}), wanted);  // writes it
      EXPECT_EQ(checksum_of(kModels + model, {.isa = isa, .cache = cache.path()}), wanted);  // reads it
    }
  }
}

TEST(WeightsChecksumTest, EveryTensorCounts) {
  TempDir dir;
  fs::copy(kModels + "tiny_qwen3", dir.file("model"), fs::copy_options::recursive);
  const std::string weights = dir.file("model") + "/model.safetensors";
  fs::permissions(weights, fs::perms::owner_all);
  const uint64_t before = checksum_of(dir.file("model"), {});
  SafetensorsHeader header;
  {
    const auto file = MappedFile::open(weights);
    ASSERT_TRUE(file.ok());
    auto parsed = parse_safetensors(file->bytes(), weights);
    ASSERT_TRUE(parsed.ok());
    header = std::move(parsed).value();
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    const auto at = static_cast<std::streamoff>(header.data_start + entry.begin + (entry.end - entry.begin) / 3);
    const auto flip = [&] {
      std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 1));
      ASSERT_TRUE(file.good());
    };
    flip();
    EXPECT_NE(checksum_of(dir.file("model"), {}), before) << entry.name;
    flip();
  }
  EXPECT_EQ(checksum_of(dir.file("model"), {}), before);
}

TEST(WeightsChecksumTest, TheCutsOfAReaderDoNotMatter) {
  constexpr int64_t kRows = 150, kColumns = 128 << 10;  // of 512 KiB: three parts, the last one smaller
  std::vector<float> elements(static_cast<std::size_t>(kRows * kColumns));
  for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i % 8191);
  const TensorView view{.data = elements.data(), .dtype = DType::kF32, .shape = {kRows, kColumns}};
  ThreadPool pool(2);
  const uint64_t wanted = MatrixChecksum(view, pool, {}).value();
  std::vector<int64_t> done;
  MatrixChecksum cut(view, pool, [&](int64_t rows) { done.push_back(rows); });
  for (const int64_t rows : {1, 63, 64, 90, 149}) cut.add(rows);
  EXPECT_EQ(done, (std::vector<int64_t>{64, 128}));  // no row of a part that is not complete is released
  EXPECT_EQ(cut.value(), wanted);
  EXPECT_EQ(done, (std::vector<int64_t>{64, 128, 150}));
}

}  // namespace
}  // namespace millrace
