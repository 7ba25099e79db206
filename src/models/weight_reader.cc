#include "models/weight_reader.h"

#include <algorithm>

namespace millrace {
namespace {

// What a matrix is quantized to, if at all.
std::optional<DType> wanted_dtype(const LoadOptions& options, std::string_view name, const TensorView& view) {
  if (!options.quantize || is_quantized(view.dtype)) return std::nullopt;
  const bool every_token = name == "model.embed_tokens.weight" || name == "lm_head.weight";
  const DType wanted = every_token ? DType::kQ8_0 : *options.quantize;
  if (view.shape[1] % dtype_block(wanted).elements != 0) return std::nullopt;
  return wanted;
}

}  // namespace

kernels::Weight WeightReader::matrix(std::string_view name, int64_t rows, int64_t columns) {
  if (const auto known = packed_.find(name); known != packed_.end()) return known->second;
  const TensorView view = tensor(name, {rows, columns});
  if (!status_.ok() || options_.pool == nullptr || check_only_) return view;
  Result<kernels::Weight> weight =
      kernels::pack_weight(options_.isa, view, *options_.pool, wanted_dtype(options_, name, view));
  if (!weight.ok()) {
    status_ = weight.status().with_prefix(std::string(name));
    return {};
  }
  if (weight->packed != nullptr) {
    store_.release(name);
    packed_.emplace(name, *weight);
  }
  bytes_done_ += view.size_bytes();
  if (options_.progress) options_.progress(std::min(bytes_done_, store_.total_bytes()), store_.total_bytes());
  return std::move(weight).value();
}

}  // namespace millrace
