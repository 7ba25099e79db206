// Qwen3-VL-MoE from a directory in the layout of published files, each expert's matrices transposed and stacked: the
// same bits as from the layout that transformers 5 saves (tests/golden/vision/moe), as stored, packed and quantized.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/testing/test_files.h"
#include "models/testing/model_testing.h"

namespace millrace {
namespace {

using nlohmann::json;
using test_files::TempDir;

const std::string kModel = std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/vision/moe";

// The bytes of [experts, rows, columns] of two-byte elements as [experts, columns, rows].
std::string transposed(const std::string& bytes, std::size_t experts, std::size_t rows, std::size_t columns) {
  std::string out(bytes.size(), '\0');
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t i = 0; i < rows * columns; ++i) {
      const std::size_t to = i % columns * rows + i / columns;
      std::memcpy(&out[2 * (e * rows * columns + to)], &bytes[2 * (e * rows * columns + i)], 2);
    }
  }
  return out;
}

// A copy of the golden model with its stacked experts transposed.
void write_published_layout(const TempDir& dir) {
  const std::string file = test_files::read_file(kModel + "/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  json header = json::parse(file.substr(8, length));
  std::string data = file.substr(8 + length);
  int stacks = 0;
  for (auto& [name, entry] : header.items()) {
    if (name.find(".mlp.experts.") == std::string::npos) continue;
    ASSERT_EQ(entry["dtype"], "BF16");
    const auto shape = entry["shape"].get<std::vector<std::size_t>>();
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    data.replace(begin, end - begin, transposed(data.substr(begin, end - begin), shape[0], shape[1], shape[2]));
    entry["shape"] = {shape[0], shape[2], shape[1]};
    ++stacks;
  }
  ASSERT_EQ(stacks, 2 * 4);  // two in each layer
  dir.write("model.safetensors", test_files::pack(header.dump(), data));
  std::filesystem::copy_file(kModel + "/config.json", dir.file("config.json"));
}

std::vector<float> logits_of(const std::string& path, kernels::Isa isa, bool packs, std::optional<DType> quantize) {
  ThreadPool pool(2);
  const auto dir = open_model_dir(path);
  auto store = WeightStore::open(path);
  EXPECT_TRUE(dir.ok() && store.ok()) << path;
  if (!dir.ok() || !store.ok()) return {};
  const LoadOptions options{.pool = packs ? &pool : nullptr, .isa = isa, .quantize = quantize};
  auto model = load_model(dir->config, std::make_shared<WeightStore>(std::move(*store)), 1, options);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return {};
  SequenceEngine engine(*model, isa, 2, 16, 32);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 24; ++i) prompt.push_back(i * 37 % 140);
  return engine.logits(prompt, 0);
}

TEST(StackedExpertsModel, BothLayoutsGiveTheSameBits) {
  TempDir published;
  ASSERT_NO_FATAL_FAILURE(write_published_layout(published));
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (!kernels::isa_available(isa)) continue;
    for (const bool packs : {false, true}) {
      const auto wanted = logits_of(kModel, isa, packs, {});
      ASSERT_FALSE(wanted.empty());
      EXPECT_EQ(logits_of(published.path(), isa, packs, {}), wanted) << kernels::isa_name(isa) << " " << packs;
    }
    const auto quantized = logits_of(kModel, isa, true, DType::kQ8_0);
    EXPECT_EQ(logits_of(published.path(), isa, true, DType::kQ8_0), quantized) << kernels::isa_name(isa);
  }
}

}  // namespace
}  // namespace millrace
