// For the kernels' tests and benchmarks: random matrices, weights of any dtype at odd addresses, paged KV with poison.
// Thread safety: values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "kernels/half.h"
#include "kernels/ops.h"

namespace millrace::kernels::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Uniform in (-1, 1), a pure function of the seed.
inline std::vector<float> random_floats(int64_t count, uint64_t seed, float scale = 1.0f) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scale * static_cast<float>(2.0 * philox_uniform(seed, i) - 1.0);
  }
  return values;
}

// A matrix of rows with a gap between them. Everything is NaN until set, so a read or write outside a row shows.
struct Matrix {
  Matrix(int64_t rows, int64_t width, int64_t gap = 0)
      : storage(static_cast<std::size_t>(rows * (width + gap) + gap + 1), kNan), count(rows), width(width), gap(gap) {}
  static Matrix random(int64_t rows, int64_t width, uint64_t seed, int64_t gap = 0, float scale = 1.0f) {
    Matrix m(rows, width, gap);
    const std::vector<float> values = random_floats(rows * width, seed, scale);
    for (int64_t r = 0; r < rows; ++r) std::copy_n(values.data() + r * width, width, m.rows().row(r));
    return m;
  }
  Rows rows() { return {storage.data() + gap, count, width, width + gap}; }
  float& at(int64_t r, int64_t i) { return rows().row(r)[i]; }
  // NaN everywhere outside the rows?
  bool gaps_untouched() {
    std::vector<bool> inside(storage.size(), false);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t i = 0; i < width; ++i) inside[static_cast<std::size_t>(gap + r * (width + gap) + i)] = true;
    }
    for (std::size_t i = 0; i < storage.size(); ++i) {
      if (!inside[i] && !std::isnan(storage[i])) return false;
    }
    return true;
  }
  std::vector<float> storage;
  int64_t count, width, gap;
};

// Weights of one dtype, `shift` bytes after an aligned address, as in a mapped safetensors file.
struct Weights {
  Weights(Shape shape, DType dtype, uint64_t seed, std::size_t shift = 0) {
    const std::vector<float> values = random_floats(shape.elements(), seed);
    bytes.resize(values.size() * dtype_size(dtype) + shift + 64);
    const std::size_t base = (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64 + shift;
    bytes.resize(base + values.size() * dtype_size(dtype));
    view.data = bytes.data() + base;
    view.dtype = dtype;
    view.shape = shape;
    for (std::size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
  }
  Weights(const Weights&) = delete;
  float get(int64_t i) const { return load_weight(view.data, view.dtype, i); }
  void set(int64_t i, float value) {
    char* to =
        const_cast<char*>(static_cast<const char*>(view.data)) + i * static_cast<int64_t>(dtype_size(view.dtype));
    if (view.dtype == DType::kF32) {
      std::memcpy(to, &value, 4);
    } else {
      const uint16_t bits = view.dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
      std::memcpy(to, &bits, 2);
    }
  }
  std::vector<char> bytes;
  TensorView view;
};

// One layer's pages, all NaN (every byte 0xff: NaN in each float type, and as the scale of int8), and a page table per
// sequence drawn without order from the pool.
struct PagedKv {
  PagedKv(int64_t page_size, int64_t kv_heads, int64_t head_dim, const std::vector<int64_t>& lengths, uint64_t seed,
          DType dtype = DType::kF32) {
    int64_t pages = 2;  // two that belong to no sequence
    for (int64_t length : lengths) pages += (length + page_size - 1) / page_size;
    std::vector<int32_t> page_ids(static_cast<std::size_t>(pages));
    std::iota(page_ids.begin(), page_ids.end(), 0);
    for (std::size_t i = page_ids.size() - 1; i > 0; --i)
      std::swap(page_ids[i], page_ids[philox(seed, i)[0] % (i + 1)]);
    std::size_t next = 0;
    for (int64_t length : lengths) {
      const std::size_t used = static_cast<std::size_t>((length + page_size - 1) / page_size);
      tables.emplace_back(page_ids.begin() + static_cast<std::ptrdiff_t>(next),
                          page_ids.begin() + static_cast<std::ptrdiff_t>(next + used));
      next += used;
    }
    layer.page_count = pages;
    layer.page_size = page_size;
    layer.kv_heads = kv_heads;
    layer.head_dim = head_dim;
    layer.dtype = dtype;
    layer.page_stride_bytes = layer.page_bytes() + 6;  // a gap, as where a page holds more than this layer
    k.assign(static_cast<std::size_t>(pages * layer.page_stride_bytes), '\xff');
    v = k;
    layer.k = k.data();
    layer.v = v.data();
  }
  PagedKv(const PagedKv&) = delete;
  std::vector<char> k, v;
  KvLayer layer;
  std::vector<std::vector<int32_t>> tables;
};

// What this processor cannot run is reported on stderr and left out.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> list;
  for (Isa isa : kAllIsas) {
    if (isa_available(isa)) {
      list.push_back(isa);
    } else {
      fmt::print(stderr, "not tested: {}, which this processor lacks\n", isa_name(isa));
    }
  }
  return list;
}

}  // namespace millrace::kernels::testing
