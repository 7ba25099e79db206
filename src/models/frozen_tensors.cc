#include "models/frozen_tensors.h"

#include "formats/packed_file.h"
#include "formats/tensor_names.h"
#include "models/matrix_checksum.h"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(const TensorView& view) {
  return {reinterpret_cast<const std::byte*>(view.data), view.size_bytes()};
}

constexpr std::string_view kWhy = "the vision tower takes no new weights while it serves";

}  // namespace

Result<FrozenTensors> FrozenTensors::read(WeightStore& store, ThreadPool& pool) {
  FrozenTensors out;
  for (const std::string& name : store.names()) {
    if (!name.starts_with(kVisionPrefix)) continue;
    ASSIGN_OR_RETURN(const TensorView view, store.get_any(name));
    out.tensors_[name] = {view.dtype, view.shape, checksum(bytes_of(view), 0, pool)};
    store.release(name);
  }
  return out;
}

FrozenTensors FrozenTensors::of(const WeightTable& tower) {
  FrozenTensors out;
  for (const auto& [name, entry] : tower.entries()) {
    CHECK(name.starts_with(kVisionPrefix) && entry.checksum.has_value());
    out.tensors_[name] = {entry.source, entry.weight.view.shape, *entry.checksum, entry.packs};
  }
  return out;
}

uint64_t FrozenTensors::sum_of(const Tensor& tensor, std::span<const std::byte> bytes, ThreadPool& pool) {
  if (!tensor.packs) return checksum(bytes, 0, pool);
  const TensorView view{.data = bytes.data(), .dtype = tensor.dtype, .shape = tensor.shape};
  return MatrixChecksum(view, pool, {}).value();
}

Status FrozenTensors::check(std::string_view name, DType dtype, const Shape& shape) const {
  const Tensor& tensor = tensors_.find(name)->second;
  if (!(shape == tensor.shape)) {
    return invalid_argument("{} has shape {}; wanted {}", quoted_name(name), shape.to_string(),
                            tensor.shape.to_string());
  }
  if (dtype == tensor.dtype) return ok_status();
  return error(StatusCode::kUnsupported, "{} comes as {} and serves as {}, and {}; wanted the bytes that serve",
               quoted_name(name), dtype_name(dtype), dtype_name(tensor.dtype), kWhy);
}

Status FrozenTensors::compare(std::string_view name, std::span<const std::byte> bytes, ThreadPool& pool) const {
  const Tensor& tensor = tensors_.find(name)->second;
  if (sum_of(tensor, bytes, pool) == tensor.checksum) return ok_status();
  return invalid_argument("{} has other values than those that serve, and {}; wanted the same ones, or a restart",
                          quoted_name(name), kWhy);
}

Status FrozenTensors::compare(WeightStore& other, ThreadPool& pool) const {
  std::size_t found = 0;
  for (const std::string& name : other.names()) {
    if (!name.starts_with(kVisionPrefix)) continue;
    ++found;
    if (!has(name)) return invalid_argument("{} is no tensor of the vision tower that serves", quoted_name(name));
    ASSIGN_OR_RETURN(const TensorView view, other.get_any(name));
    RETURN_IF_ERROR(check(name, view.dtype, view.shape));
    RETURN_IF_ERROR(compare(name, bytes_of(view), pool));
    other.release(name);
  }
  if (found == 0 || found == tensors_.size()) return ok_status();
  return invalid_argument("it has {} tensors of a vision tower; wanted {}, as many as serve", found, tensors_.size());
}

}  // namespace millrace
