#include "models/frozen_tensors.h"

#include <array>
#include <utility>

#include "formats/packed_file.h"
#include "formats/tensor_names.h"
#include "models/matrix_checksum.h"
#include "models/model.h"

namespace millrace {
namespace {

std::span<const std::byte> bytes_of(const TensorView& view) {
  return {reinterpret_cast<const std::byte*>(view.data), view.size_bytes()};
}

// A part by the prefix of its plain names, and why its tensors stay.
struct Part {
  std::string_view prefix;
  bool FrozenParts::*served;
  std::string_view name;
  std::string_view why;
};
constexpr Part kParts[] = {
    {kVisionPrefix, &FrozenParts::vision, "vision tower", "the vision tower takes no new weights while it serves"},
    {kAudioPrefix, &FrozenParts::audio, "audio tower", "the audio tower takes no new weights while it serves"},
    {kTalkerPrefix, &FrozenParts::speech, "talker", "the talker takes no new weights while it serves"},
    {kCode2WavPrefix, &FrozenParts::speech, "vocoder", "the vocoder takes no new weights while it serves"},
    {kEmbeddingName, &FrozenParts::speech, "embedding",
     "the talker, which takes no new weights while it serves, reads it too (--speech off serves without a talker)"},
    {kScoreHeadName, &FrozenParts::score, "head of labels", "the head of labels takes no new weights while it serves"},
};

// The index in kParts; none: a tensor of the language model alone.
std::size_t part_of(std::string_view name) {
  std::size_t part = 0;
  while (part < std::size(kParts) && !name.starts_with(kParts[part].prefix)) ++part;
  return part;
}

}  // namespace

Result<FrozenTensors> FrozenTensors::read(WeightStore& store, FrozenParts parts, ThreadPool& pool) {
  FrozenTensors out;
  for (const std::string& name : store.names()) {
    const std::size_t part = part_of(name);
    if (part == std::size(kParts) || !(parts.*kParts[part].served)) continue;
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

void FrozenTensors::merge(FrozenTensors other) { tensors_.merge(other.tensors_); }

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
               quoted_name(name), dtype_name(dtype), dtype_name(tensor.dtype), kParts[part_of(name)].why);
}

Status FrozenTensors::compare(std::string_view name, std::span<const std::byte> bytes, ThreadPool& pool) const {
  const Tensor& tensor = tensors_.find(name)->second;
  if (sum_of(tensor, bytes, pool) == tensor.checksum) return ok_status();
  return invalid_argument("{} has other values than those that serve, and {}; wanted the same ones, or a restart",
                          quoted_name(name), kParts[part_of(name)].why);
}

Status FrozenTensors::compare(WeightStore& other, ThreadPool& pool) const {
  std::array<std::size_t, std::size(kParts)> serve{}, found{};
  for (const auto& [name, tensor] : tensors_) ++serve[part_of(name)];
  for (const std::string& name : other.names()) {
    const std::size_t part = part_of(name);
    if (part == std::size(kParts) || serve[part] == 0) continue;  // which serves here alone, or not at all
    ++found[part];
    if (!has(name)) {
      return invalid_argument("{} is no tensor of the {} that serves", quoted_name(name), kParts[part].name);
    }
    ASSIGN_OR_RETURN(const TensorView view, other.get_any(name));
    RETURN_IF_ERROR(check(name, view.dtype, view.shape));
    RETURN_IF_ERROR(compare(name, bytes_of(view), pool));
    if (name != kEmbeddingName) other.release(name);  // which the language model takes next
  }
  for (std::size_t part = 0; part < std::size(kParts); ++part) {
    if (found[part] == 0 || found[part] == serve[part]) continue;
    return invalid_argument("it has {} tensors of a {}; wanted {}, as many as serve", found[part], kParts[part].name,
                            serve[part]);
  }
  return ok_status();
}

}  // namespace millrace
