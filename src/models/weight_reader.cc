#include "models/weight_reader.h"

#include <algorithm>

#include "formats/packed_file.h"
#include "models/matrix_checksum.h"
#include "models/packed_cache.h"

namespace millrace {
namespace {

// What a matrix that the file holds as `stored` is quantized to, if at all.
std::optional<DType> wanted_dtype(const LoadOptions& options, std::string_view name, DType stored, int64_t columns) {
  if (!options.quantize || is_quantized(stored)) return std::nullopt;
  const bool every_token = name == "model.embed_tokens.weight" || name == "lm_head.weight";
  const DType wanted = every_token ? DType::kQ8_0 : *options.quantize;
  if (columns % dtype_block(wanted).elements != 0) return std::nullopt;
  return wanted;
}

}  // namespace

Result<kernels::Weight> WeightReader::packed(std::string_view name, const Shape& shape) {
  ASSIGN_OR_RETURN(const DType stored, store_.take(name, shape));
  const std::optional<DType> wanted = wanted_dtype(options_, name, stored, shape[1]);
  const auto release = [&](int64_t rows) { store_.release_rows(name, rows); };
  const auto pack = [&](const TensorView& view, const kernels::RowsDone& rows_done) {
    auto weight = kernels::pack_weight(options_.isa, view, *options_.pool, wanted, rows_done);
    if (!weight.ok()) return Result<kernels::Weight>(weight.status().with_prefix(std::string(name)));
    return weight;
  };
  if (options_.packed_cache != nullptr) {
    return options_.packed_cache->matrix(name, shape, wanted.value_or(stored),
                                         [&](const TensorView& view) { return pack(view, release); });
  }
  ASSIGN_OR_RETURN(const TensorView view, store_.get(name, shape));
  MatrixChecksum sum(view, *options_.pool, release);
  ASSIGN_OR_RETURN(kernels::Weight weight, pack(view, [&sum](int64_t rows) { sum.add(rows); }));
  store_.note_checksum(name, sum.value());
  return weight;
}

TensorView WeightReader::tensor(std::string_view name, const Shape& shape) {
  if (!status_.ok()) return {};
  Result<TensorView> view = store_.get(name, shape);
  if (!view.ok()) {
    status_ = view.status();
    return {};
  }
  if (options_.pool != nullptr && !check_only_) {
    const auto* bytes = static_cast<const std::byte*>(view->data);
    store_.note_checksum(name, checksum({bytes, view->size_bytes()}, 0, *options_.pool));
  }
  return *view;
}

kernels::Weight WeightReader::matrix(std::string_view name, int64_t rows, int64_t columns) {
  if (const auto known = packed_.find(name); known != packed_.end()) return known->second;
  const Shape shape{rows, columns};
  if (!status_.ok() || options_.pool == nullptr || check_only_) return tensor(name, shape);
  Result<kernels::Weight> weight = packed(name, shape);
  if (!weight.ok()) {
    status_ = weight.status();
    return {};
  }
  if (weight->packed != nullptr) {
    store_.release(name);
    packed_.emplace(name, *weight);
  }
  const SafetensorsEntry* entry = store_.find(name);
  bytes_done_ += entry->end - entry->begin;
  if (options_.progress) options_.progress(std::min(bytes_done_, store_.total_bytes()), store_.total_bytes());
  return std::move(weight).value();
}

}  // namespace millrace
