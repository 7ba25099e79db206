// Stacked experts in both layouts, over one file and over shards; what is refused.
#include "formats/stacked_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/testing/test_files.h"
#include "formats/weights.h"

namespace millrace {
namespace {

using test_files::f32_bytes;
using test_files::pack;
using test_files::TempDir;

const std::string kLayer = "model.language_model.layers.2.mlp.";
constexpr const char* kPlainLayer = "model.layers.2.mlp.";

struct Stored {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

std::string file_of(const std::vector<Stored>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const Stored& tensor : tensors) {
    const std::size_t begin = data.size();
    data += f32_bytes(tensor.values);
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return pack(header.dump(), data);
}

// Element (row, column) of one of an expert's matrices: no two of a model are equal.
float value(int64_t expert, int64_t matrix, int64_t row, int64_t column) {
  return static_cast<float>(((expert * 3 + matrix) * 64 + row) * 64 + column);
}

struct Sizes {
  int64_t experts, hidden, inner;
};

// [experts, rows, columns] of value(), or each matrix transposed. Rows from `split` on are of the next matrix.
Stored stack(const std::string& name, Sizes s, int64_t matrix, int64_t rows, int64_t columns, int64_t split,
             bool transposed) {
  Stored out{kLayer + "experts." + name, {s.experts, rows, columns}, {}};
  if (transposed) std::swap(out.shape[1], out.shape[2]);
  for (int64_t e = 0; e < s.experts; ++e) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t row = transposed ? i % rows : i / columns, column = transposed ? i / rows : i % columns;
      out.values.push_back(row < split ? value(e, matrix, row, column) : value(e, matrix + 1, row - split, column));
    }
  }
  return out;
}

Stored gate_up(Sizes s, bool transposed) {
  return stack("gate_up_proj", s, 0, 2 * s.inner, s.hidden, s.inner, transposed);
}
Stored down(Sizes s, bool transposed) { return stack("down_proj", s, 2, s.hidden, s.inner, s.hidden, transposed); }
Stored router(Sizes s) {
  return {kLayer + "gate.weight",
          {s.experts, s.hidden},
          std::vector<float>(static_cast<std::size_t>(s.experts * s.hidden))};
}

void expect_matrix(WeightStore& store, int64_t expert, const std::string& name, int64_t matrix, int64_t rows,
                   int64_t columns) {
  const std::string full = kPlainLayer + ("experts." + std::to_string(expert)) + "." + name + ".weight";
  const auto view = store.get(full, {rows, columns});
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      ASSERT_EQ(view->as<float>()[static_cast<std::size_t>(row * columns + column)], value(expert, matrix, row, column))
          << full << " " << row << " " << column;
    }
  }
}

void expect_experts(WeightStore& store, Sizes s) {
  for (int64_t e = 0; e < s.experts; ++e) {
    expect_matrix(store, e, "gate_proj", 0, s.inner, s.hidden);
    expect_matrix(store, e, "up_proj", 1, s.inner, s.hidden);
    expect_matrix(store, e, "down_proj", 2, s.hidden, s.inner);
  }
}

Status open_status(const std::vector<Stored>& tensors) {
  TempDir dir;
  dir.write("model.safetensors", file_of(tensors));
  return WeightStore::open(dir.path()).status();
}

// Among the sizes: H = 2 I and H = I, where one of the two shapes is the same in both layouts, and matrices of more
// than one tile.
TEST(StackedExperts, BothLayoutsAreSplit) {
  for (const Sizes s :
       {Sizes{3, 10, 7}, Sizes{2, 8, 4}, Sizes{2, 6, 6}, Sizes{1, 4, 8}, Sizes{1, 1, 1}, Sizes{2, 50, 37}}) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(testing::Message() << "H " << s.hidden << " I " << s.inner << " transposed " << transposed);
      TempDir dir;
      dir.write("model.safetensors", file_of({gate_up(s, transposed), down(s, transposed), router(s)}));
      auto store = WeightStore::open(dir.path());
      ASSERT_TRUE(store.ok()) << store.status().to_string();
      EXPECT_EQ(store->names().size(), static_cast<std::size_t>(3 * s.experts + 1));
      const auto floats = static_cast<uint64_t>(3 * s.experts * s.hidden * s.inner + s.experts * s.hidden);
      EXPECT_EQ(store->total_bytes(), floats * 4);
      EXPECT_TRUE(store->check_finite().ok());
      expect_experts(*store, s);
      store->release(std::string(kPlainLayer) + "experts.0.gate_proj.weight");
      expect_experts(*store, s);
    }
  }
}

TEST(StackedExperts, TheTensorsOfALayerMayLieInDifferentShards) {
  const Sizes s{3, 10, 7};
  TempDir dir;
  const std::vector<Stored> tensors = {gate_up(s, true), down(s, true), router(s)};
  nlohmann::json index;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string name = "part-" + std::to_string(i) + ".safetensors";
    dir.write(name, file_of({tensors[i]}));
    index["weight_map"][tensors[i].name] = name;
  }
  dir.write("model.safetensors.index.json", index.dump());
  auto store = WeightStore::open(dir.path());
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_EQ(store->shard_count(), 3u);
  expect_experts(*store, s);
}

TEST(StackedExperts, ANaNIsNamedByItsExpert) {
  const Sizes s{2, 5, 3};
  Stored stacked = gate_up(s, true);
  // Expert 1, up_proj, row 2, column 4: [E, H, 2 I].
  stacked.values[static_cast<std::size_t>((1 * s.hidden + 4) * 2 * s.inner + s.inner + 2)] =
      std::numeric_limits<float>::quiet_NaN();
  TempDir dir;
  dir.write("model.safetensors", file_of({stacked, down(s, true), router(s)}));
  auto store = WeightStore::open(dir.path());
  ASSERT_TRUE(store.ok());
  const std::string message = store->check_finite().to_string();
  EXPECT_NE(message.find("element 14 of tensor \"model.layers.2.mlp.experts.1.up_proj.weight\""), std::string::npos)
      << message;
}

TEST(StackedExperts, WhatDoesNotFitIsRefused) {
  const Sizes s{3, 10, 7};
  const auto refused = [](const std::vector<Stored>& tensors, std::string_view part) {
    const Status status = open_status(tensors);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  refused({down(s, false), router(s)}, "without \"model.layers.2.mlp.experts.gate_up_proj\"");
  refused({gate_up(s, false), router(s)}, "without \"model.layers.2.mlp.experts.down_proj\"");
  refused({gate_up(s, false), down(s, false)}, "without \"model.layers.2.mlp.gate.weight\"");
  // One matrix in each layout.
  refused({gate_up(s, true), down(s, false), router(s)}, "wanted [3, 7, 10], the layout of");
  refused({gate_up(s, false), down(s, true), router(s)}, "wanted [3, 10, 7], the layout of");
  refused({gate_up({3, 10, 8}, false), down(s, false), router(s)}, "wanted [3, 14, 10] or [3, 10, 14]");
  refused({gate_up({2, 10, 7}, false), down(s, false), router(s)}, "has shape [2, 14, 10]");
  refused({gate_up(s, false), down(s, false), router({3, 11, 7})}, "has shape [3, 10, 7]");
  Stored flat = down(s, false);
  flat.shape = {3, 70};
  refused({gate_up(s, false), flat, router(s)}, "wanted three dimensions");
  Stored empty = down(s, false);
  empty.shape = {3, 10, 0};
  empty.values.clear();
  refused({gate_up(s, false), empty, router(s)}, "inner size 0");
}

TEST(UnstackEntry, AnEntryAloneIsDividedAsInItsFile) {
  const ExpertSizes sizes{2, 6, 4};
  const auto of = [&](const std::string& name, const Shape& shape) {
    return unstack_entry(
        {kPlainLayer + ("experts." + name), DType::kF32, shape, 0, static_cast<uint64_t>(shape.elements()) * 4}, sizes);
  };
  const auto plain = of("gate_up_proj", {2, 8, 6});
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  ASSERT_EQ(plain->size(), 4u);
  EXPECT_EQ((*plain)[1].name, "model.layers.2.mlp.experts.0.up_proj.weight");
  EXPECT_EQ((*plain)[1].begin, 96u);
  EXPECT_FALSE((*plain)[1].is_transposed());
  const auto transposed = of("gate_up_proj", {2, 6, 8});
  ASSERT_TRUE(transposed.ok()) << transposed.status().to_string();
  EXPECT_TRUE((*transposed)[3].is_transposed());
  EXPECT_EQ((*transposed)[3].shape, (Shape{4, 6}));
  EXPECT_EQ(of("down_proj", {2, 6, 4})->size(), 2u);
  EXPECT_EQ(of("down_proj", {2, 4, 4}).status().code(), StatusCode::kInvalidArgument);
  const auto either =
      unstack_entry({kPlainLayer + std::string("experts.down_proj"), DType::kF32, {2, 4, 4}, 0, 128}, {2, 4, 4});
  EXPECT_EQ(either.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(either.status().message().find("wanted a tensor for each expert"), std::string::npos);
}

}  // namespace
}  // namespace millrace
