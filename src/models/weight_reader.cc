#include "models/weight_reader.h"

#include <algorithm>

#include "formats/packed_file.h"
#include "models/matrix_checksum.h"
#include "models/packed_cache.h"

namespace millrace {

namespace {

// Embeddings and heads of the codes of a frame (models/omni/code_predictor.h).
bool is_code_table(std::string_view name) {
  return name.starts_with("talker.code_predictor.model.codec_embedding.") ||
         name.starts_with("talker.code_predictor.lm_head.");
}

}  // namespace

std::optional<DType> quantized_dtype(const LoadOptions& options, std::string_view name, DType stored, int64_t columns) {
  if (!options.quantize || is_quantized(stored)) return std::nullopt;
  const bool every_token = name == "model.embed_tokens.weight" || name == "lm_head.weight" || is_code_table(name);
  const DType wanted = every_token ? DType::kQ8_0 : *options.quantize;
  if (columns % dtype_block(wanted).elements != 0) return std::nullopt;
  return wanted;
}

Result<kernels::Weight> WeightReader::packed(std::string_view name, const Shape& shape) {
  ASSIGN_OR_RETURN(const DType stored, store_->take(name, shape));
  const std::optional<DType> wanted = quantized_dtype(options_, name, stored, shape[1]);
  const auto release = [&](int64_t rows) { store_->release_rows(name, rows); };
  const auto pack = [&](const TensorView& view, const kernels::RowsDone& rows_done) {
    auto weight = kernels::pack_weight(options_.isa, view, *options_.pool, wanted, rows_done);
    if (!weight.ok()) return Result<kernels::Weight>(weight.status().with_prefix(std::string(name)));
    return weight;
  };
  if (options_.packed_cache != nullptr) {
    return options_.packed_cache->matrix(name, shape, wanted.value_or(stored),
                                         [&](const TensorView& view) { return pack(view, release); });
  }
  ASSIGN_OR_RETURN(const TensorView view, store_->get(name, shape));
  MatrixChecksum sum(view, *options_.pool, release);
  ASSIGN_OR_RETURN(kernels::Weight weight, pack(view, [&sum](int64_t rows) { sum.add(rows); }));
  store_->note_checksum(name, sum.value());
  return weight;
}

// Of a table: what is not in it, or has another shape, is an error of its maker.
const kernels::Weight& WeightReader::made(std::string_view name, const Shape& shape) {
  static const kernels::Weight kNone;
  const WeightTable::Entry* entry = made_.find(name);
  if (entry != nullptr && entry->weight.view.shape == shape) return entry->weight;
  if (status_.ok()) {
    status_ = internal_error("the table of weights has no {} of shape {}", quoted_name(name), shape.to_string());
  }
  return kNone;
}

void WeightReader::put(std::string_view name, const kernels::Weight& weight, bool packs) {
  table_->put(name, {.weight = weight,
                     .packs = packs,
                     .owner = weight.packed != nullptr ? nullptr : store_,
                     .source = store_->find(name)->dtype,
                     .checksum = store_->noted_checksum(name)});
}

TensorView WeightReader::tensor(std::string_view name, const Shape& shape) {
  if (!status_.ok()) return {};
  if (store_ == nullptr) return made(name, shape).view;
  Result<TensorView> view = store_->get(name, shape);
  if (!view.ok()) {
    status_ = view.status();
    return {};
  }
  if (options_.pool != nullptr) {
    const auto* bytes = static_cast<const std::byte*>(view->data);
    store_->note_checksum(name, checksum({bytes, view->size_bytes()}, 0, *options_.pool));
  }
  put(name, *view, false);
  return *view;
}

kernels::Weight WeightReader::matrix(std::string_view name, int64_t rows, int64_t columns) {
  const Shape shape{rows, columns};
  if (store_ == nullptr) return made(name, shape);
  // A tied head is its embedding.
  if (const WeightTable::Entry* known = table_->find(name); known != nullptr && known->packs) return known->weight;
  if (!status_.ok() || options_.pool == nullptr) return tensor(name, shape);
  Result<kernels::Weight> weight = packed(name, shape);
  if (!weight.ok()) {
    status_ = weight.status();
    return {};
  }
  if (weight->packed != nullptr) store_->release(name);
  put(name, *weight, true);
  const SafetensorsEntry* entry = store_->find(name);
  bytes_done_ += entry->end - entry->begin;
  if (options_.progress) options_.progress(std::min(bytes_done_, store_->total_bytes()), store_->total_bytes());
  return std::move(weight).value();
}

}  // namespace millrace
