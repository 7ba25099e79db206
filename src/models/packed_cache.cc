#include "models/packed_cache.h"

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/log.h"
#include "base/rng.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "models/matrix_checksum.h"

namespace millrace {
namespace {

// To be raised when packed bytes change in a way that layout_sum() cannot see.
constexpr int kPackingVersion = 1;

constexpr std::size_t kMaxNameBytes = 80;
// Rows and columns that leave the last panels, words and groups of every layout partly filled; 256 for large blocks.
constexpr int64_t kProbeRows = 41, kProbeColumns = 352, kProbeColumnsOfLargeBlocks = 512;

// Elements of any dtype, none of them NaN.
Buffer probe(DType dtype, int64_t count) {
  Buffer out(storage_bytes(dtype, count));
  const auto bytes = out.as<uint8_t>();
  if (is_quantized(dtype)) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(philox(1, i)[0]);
    return out;
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const auto value = static_cast<float>(philox_uniform(2, i) - 0.5);
    if (dtype == DType::kF32) out.as<float>()[i] = value;
    if (dtype == DType::kF16) out.as<uint16_t>()[i] = kernels::f32_to_f16(value);
    if (dtype == DType::kBF16) out.as<uint16_t>()[i] = kernels::f32_to_bf16(value);
  }
  return out;
}

// What this program makes of small matrices: another layout or quantizer has another sum.
uint64_t layout_sum(kernels::Isa isa, ThreadPool& pool) {
  uint64_t sum = kPackingVersion;
  const auto add = [&](DType from, std::optional<DType> to) {
    const bool large = dtype_block(from).elements > kProbeColumns / 2;
    const int64_t columns = large ? kProbeColumnsOfLargeBlocks : kProbeColumns;
    const Buffer elements = probe(from, kProbeRows * columns);
    const TensorView view{.data = elements.data(), .dtype = from, .shape = {kProbeRows, columns}};
    const auto weight = kernels::pack_weight(isa, view, pool, to);
    CHECK(weight.ok());
    sum = checksum(kernels::packed_bytes(*weight), sum, pool);
  };
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::optional<DType> to : {std::optional<DType>(), {DType::kQ8_0}, {DType::kQ4_0}}) add(from, to);
  }
  for (const DType from : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) add(from, {});
  return sum;
}

std::string quantize_name(const LoadOptions& load) {
  return std::string(load.quantize ? dtype_name(*load.quantize) : "stored");
}

std::string key_of(const WeightStore& store, const LoadOptions& load) {
  std::string text = fmt::format("{} {:016x} {}", kPackedFormat, layout_sum(load.isa, *load.pool), quantize_name(load));
  for (const std::string& name : store.names()) {
    const SafetensorsEntry* entry = store.find(name);
    text += fmt::format("\n{} {} {}", name, dtype_name(entry->dtype), entry->shape.to_string());
  }
  return fmt::format("{:016x}", checksum(std::as_bytes(std::span(text)), 0, *load.pool));
}

std::string source_of(const WeightStore& store) {
  std::string out;
  for (const FileStamp& s : store.stamps()) {
    if (!s.settled) return "";
    out += fmt::format("{}{}:{}:{}:{}", out.empty() ? "" : " ", s.inode, s.size_bytes, s.modified_ns, s.changed_ns);
  }
  return out;
}

// A file name that any file system takes.
std::string file_name(std::string_view model, const LoadOptions& load, const std::string& key) {
  std::string name(model.substr(0, kMaxNameBytes));
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  }
  return fmt::format("{}-{}-{}{}", name, quantize_name(load), key, kPackedSuffix);
}

// What a packed matrix was made of and into: "Q8_0[1024,3072]:0123456789abcdef".
std::string kind_of(const Shape& shape, DType dtype) {
  return fmt::format("{}[{},{}]:", dtype_name(dtype), shape[0], shape[1]);
}

// The checksum of the matrix that a run of this kind was made of.
std::optional<uint64_t> source_sum_of(const PackedFile::Run& run, const std::string& kind) {
  if (!run.made_of.starts_with(kind)) return std::nullopt;
  uint64_t sum = 0;
  const char *begin = run.made_of.data() + kind.size(), *end = run.made_of.data() + run.made_of.size();
  const auto [rest, code] = std::from_chars(begin, end, sum, 16);
  return code == std::errc() && rest == end ? std::optional(sum) : std::nullopt;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

PackedCache::PackedCache(std::string directory, std::string_view model_name, WeightStore& store,
                         const LoadOptions& load)
    : directory_(std::move(directory)), store_(store), load_(load) {
  source_ = source_of(store_);
  key_ = key_of(store_, load_);
  path_ = fmt::format("{}/{}", directory_, file_name(model_name, load_, key_));
  auto opened = PackedFile::open(path_, key_);
  if (opened.ok()) {
    file_ = std::move(opened).value();
    same_files_ = !source_.empty() && file_->source() == source_;
  } else if (opened.status().code() != StatusCode::kNotFound) {
    warn(opened.status());
  }
}

// Of one file, only the first thing that is wrong is logged.
void PackedCache::warn(const Status& status) {
  if (!warned_) LOG_WARNING("packed cache: {}; packing the weights again", status.message());
  warned_ = true;
}

std::optional<kernels::Weight> PackedCache::read(const PackedFile::Run& run, const Held& held, const Shape& shape,
                                                 DType dtype) {
  auto weight = kernels::restore_weight(load_.isa, dtype, shape, [&](std::span<std::byte> bytes) {
    if (bytes.size() == run.size_bytes) return file_->read_run(held.name, run, bytes, *load_.pool);
    return invalid_argument("{}: {} has {} bytes; wanted {}", file_->path(), held.name, run.size_bytes, bytes.size());
  });
  if (weight.ok()) return std::move(weight).value();
  warn(weight.status());
  return std::nullopt;
}

Result<kernels::Weight> PackedCache::matrix(std::string_view name, const Shape& shape, DType dtype, Pack pack) {
  Held held{.name = std::string(name)};
  const auto keep = [&](kernels::Weight weight) {
    held.weight = weight;
    held_.push_back(std::move(held));
    return weight;
  };
  const std::string kind = kind_of(shape, dtype);
  const PackedFile::Run* run = file_ ? file_->find(name) : nullptr;
  if (const auto noted = same_files_ && run != nullptr ? source_sum_of(*run, kind) : std::nullopt) {
    held.made_of = run->made_of;
    if (auto weight = read(*run, held, shape, dtype)) {
      store_.note_checksum(name, *noted);
      return keep(*weight);
    }
  }
  ASSIGN_OR_RETURN(const TensorView view, store_.get(name, shape));
  const uint64_t sum =
      MatrixChecksum(view, *load_.pool, [&](int64_t rows) { store_.release_rows(name, rows); }).value();
  store_.note_checksum(name, sum);
  held.made_of = fmt::format("{}{:016x}", kind, sum);
  if (run != nullptr && !same_files_ && run->made_of == held.made_of) {
    if (auto weight = read(*run, held, shape, dtype)) return keep(*weight);
  }
  ASSIGN_OR_RETURN(kernels::Weight weight, pack(view));
  if (weight.packed == nullptr) return weight;
  ++packed_;
  return keep(std::move(weight));
}

void PackedCache::save(const ProgressFn& progress) {
  if (packed_ == 0) {
    if (!file_) return;  // a model of which nothing is packed
    mark_packed_file_used(path_);
    LOG_INFO("packed cache: {} matrices from {}{}", held_.size(), path_,
             same_files_ ? "" : ", each compared with the model's files");
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  std::vector<PackedRun> runs;
  std::size_t bytes = 0;
  for (const Held& held : held_) {
    runs.push_back({held.name, held.made_of, kernels::packed_bytes(held.weight)});
    bytes += runs.back().bytes.size();
  }
  const Status status = write_packed_file(path_, key_, source_, runs, *load_.pool, progress);
  if (!status.ok()) {
    if (status.code() == StatusCode::kConflict) {
      LOG_INFO("packed cache: not written: {}", status.message());
    } else {
      LOG_WARNING("packed cache: not written: {}", status.message());
    }
    return;
  }
  LOG_INFO("packed cache: wrote {} matrices, {} bytes, to {} in {:.1f} s", held_.size(), bytes, path_,
           seconds_since(begin));
  for (const std::string& path : trim_packed_files(directory_, kMaxPackedFiles)) {
    LOG_INFO("packed cache: removed {}, beyond the {} files kept", path, kMaxPackedFiles);
  }
}

}  // namespace millrace
