#include "formats/weights.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "formats/finite_values.h"
#include "formats/gguf_model.h"
#include "formats/gguf_vision.h"
#include "formats/shard_names.h"
#include "formats/stacked_experts.h"
#include "formats/tensor_names.h"

namespace millrace {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxNamesInMessage = 3;
constexpr std::size_t kBlockAlignment = 2;  // of the f16 scales in quantized blocks

std::string join(const std::string& directory, std::string_view name) { return fmt::format("{}/{}", directory, name); }

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

// A path without weights. A name that is misspelt, and a file in the place of its folder, are what people give most.
Status no_weights(const std::string& path) {
  constexpr std::string_view kWanted = "wanted a Hugging Face model directory, or a GGUF file (*.gguf)";
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return error(StatusCode::kNotFound, "{}: {}; {}", path, std::strerror(errno), kWanted);
  }
  if (!S_ISDIR(info.st_mode)) return error(StatusCode::kNotFound, "{} is another file; {}", path, kWanted);
  return error(StatusCode::kNotFound, "{}: has neither {} nor {}; {}", path, kSingleFile, kIndexFile, kWanted);
}

// The entries of a GGUF file under the names of a Hugging Face folder, each of stacked experts on its own. `made`
// counts those of all files: a few bytes of a header may stand for a thousand experts, so there is a limit to both.
Result<SafetensorsHeader> hf_header(const GgufHeader& gguf, int experts, uint64_t& made) {
  SafetensorsHeader out;
  out.data_start = gguf.data_start;
  for (const GgufTensor& tensor : gguf.tensors) {
    if (tensor.name == "rope_freqs.weight") continue;  // the config has read it
    SafetensorsEntry entry{hf_tensor_name(tensor.name), tensor.dtype, tensor.shape, tensor.begin, tensor.end};
    const std::size_t number = entry.name.find("{}");
    // The name of a file may hold the braces too, and is no pattern.
    const bool stacked = experts > 0 && number != std::string::npos && tensor.name.find("{}") == std::string::npos;
    if (!stacked) {
      out.tensors.push_back(std::move(entry));
      continue;
    }
    if (tensor.shape.rank() != 3 || tensor.shape[0] != experts || tensor.begin == tensor.end) {
      return invalid_argument("tensor {} has shape {}; wanted three dimensions that are not 0, {} experts first",
                              quoted_name(tensor.name), tensor.shape.to_string(), experts);
    }
    const auto count = static_cast<uint64_t>(experts);
    if (made += count; made > kGgufMaxTensors) {
      return error(StatusCode::kTooLarge, "has over {} matrices of experts; wanted at most {}", made - count,
                   kGgufMaxTensors);
    }
    const uint64_t bytes = (tensor.end - tensor.begin) / count;
    const std::string pattern = entry.name;
    for (uint64_t i = 0; i < count; ++i) {
      out.tensors.push_back({std::string(pattern).replace(number, 2, std::to_string(i)), tensor.dtype,
                             Shape{tensor.shape[1], tensor.shape[2]}, tensor.begin + i * bytes,
                             tensor.begin + (i + 1) * bytes});
    }
  }
  return out;
}

// GGUF files of Llama interleave the two halves of a head: row 2 j + s of a head is row s * half + j of the original.
// Whole rows move, so that quantized ones do too.
void copy_unpermuted(const TensorView& from, int heads, std::byte* to) {
  const auto rows = static_cast<std::size_t>(from.shape[0]);
  if (from.size_bytes() == 0) return;
  const std::size_t row_bytes = from.size_bytes() / rows;
  const std::size_t head = rows / static_cast<std::size_t>(heads), half = head / 2;
  const auto* source = static_cast<const std::byte*>(from.data);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t inside = row % head;
    const std::size_t target = row - inside + (inside % 2) * half + inside / 2;
    std::memcpy(to + target * row_bytes, source + row * row_bytes, row_bytes);
  }
}

bool ignored(std::string_view name, const std::vector<std::string_view>& ignore) {
  return std::any_of(ignore.begin(), ignore.end(), [&](std::string_view tail) { return name.ends_with(tail); });
}

}  // namespace

Status WeightStore::add_shard(const std::string& path, MapMode mode) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, mode));
  ASSIGN_OR_RETURN(SafetensorsHeader header, parse_safetensors(file.bytes(), path));
  return add_shard(std::move(file), std::move(header));
}

Status WeightStore::add_shard(MappedFile file, SafetensorsHeader header) {
  for (SafetensorsEntry& entry : header.tensors) entry.name = plain_tensor_name(entry.name, part_);
  const std::string& path = file.path();
  const std::size_t shard = shards_.size();
  for (std::size_t i = 0; i < header.tensors.size(); ++i) {
    const SafetensorsEntry& entry = header.tensors[i];
    const auto [at, added] = slots_.try_emplace(entry.name);
    if (!added) {
      if (at->second.shard == shard) {
        return invalid_argument("{}: holds the tensor {} under two names; wanted one of them", path,
                                quoted_name(entry.name));
      }
      return invalid_argument("{}: holds the tensor {}, which {} holds too; wanted it in one shard", path,
                              quoted_name(entry.name), shards_[at->second.shard].file.path());
    }
    at->second.shard = shard;
    at->second.tensor = i;
    total_bytes_ += entry.end - entry.begin;
    total_elements_ += entry.shape.elements();
  }
  shards_.push_back({std::move(file), std::move(header)});
  return ok_status();
}

Status WeightStore::add_gguf(const std::string& path, MapMode mode) {
  ASSIGN_OR_RETURN(GgufModel model, GgufModel::open(path, mode));
  ASSIGN_OR_RETURN(const ModelConfig config, gguf_model_config(model));
  uint64_t made = 0;
  for (GgufFile& file : std::move(model).take_files()) {
    Result<SafetensorsHeader> header = hf_header(file.header, config.num_experts, made);
    if (!header.ok()) return header.status().with_prefix(file.file.path());
    RETURN_IF_ERROR(add_shard(std::move(file.file), std::move(header).value()));
  }
  if (config.vision) RETURN_IF_ERROR(add_tower_file(path, mode));
  for (auto& [name, slot] : slots_) {
    slot.rope_heads = rope_permuted_heads(config, name);
    const Shape& shape = entry_of(slot).shape;
    if (slot.rope_heads == 0 || (shape.rank() > 0 && shape[0] % (2 * slot.rope_heads) == 0)) continue;
    return invalid_argument("{}: tensor {} has shape {}; wanted a multiple of {} rows, the halves of its heads", path,
                            quoted_name(name), shape.to_string(), 2 * slot.rope_heads);
  }
  return ok_status();
}

// Of a model in GGUF, whose config has the tower that is there.
Status WeightStore::add_tower_file(const std::string& model_file, MapMode mode) {
  ASSIGN_OR_RETURN(const std::optional<std::string> path, find_tower(model_file));
  CHECK(path.has_value());
  ASSIGN_OR_RETURN(GgufModel tower, GgufModel::open(*path, mode));
  auto header = tower_header(tower);
  if (!header.ok()) return header.status().with_prefix(*path);
  return add_shard(std::move(std::move(tower).take_files().front().file), std::move(header).value());
}

Status WeightStore::open_index(const std::string& index_path, MapMode mode) {
  ASSIGN_OR_RETURN(const std::string text, read_small_file(index_path, kMaxIndexFileBytes));
  auto parsed = parse_json(text);
  if (!parsed.ok()) return invalid_argument("{}: {}; wanted one JSON object", index_path, parsed.status().message());
  const Json& root = *parsed;
  ASSIGN_OR_RETURN(const std::set<std::string> files, shard_names(root, index_path));
  const Json* map = json_find(root, "weight_map");
  for (const std::string& file : files) {
    Status status = add_shard(join(directory_, file), mode);
    if (status.code() == StatusCode::kNotFound) {
      return status.with_prefix(fmt::format("{}: names a shard that is missing", index_path));
    }
    RETURN_IF_ERROR(status);
  }
  for (const auto& [name, file] : map->items()) {
    const auto at = slots_.find(plain_tensor_name(name, part_));
    const std::string wanted = join(directory_, file.get_ref<const std::string&>());
    if (at == slots_.end() || shards_[at->second.shard].file.path() != wanted) {
      return invalid_argument("{}: maps the tensor {} to {}; wanted it there, found it in {}", index_path,
                              quoted_name(name), wanted,
                              at == slots_.end() ? "no shard" : shards_[at->second.shard].file.path());
    }
  }
  const Json* metadata = json_find(root, "metadata");
  const Json* total = metadata != nullptr && metadata->is_object() ? json_find(*metadata, "total_size") : nullptr;
  if (total != nullptr && total->is_number() && total->get<double>() != static_cast<double>(total_bytes_)) {
    LOG_WARNING("{}: total_size is {}; the shards hold {} bytes of tensors", index_path, total->dump(), total_bytes_);
  }
  return ok_status();
}

Status WeightStore::open_directory(MapMode mode) {
  ASSIGN_OR_RETURN(const std::optional<std::string> gguf, find_gguf(directory_));
  if (gguf) return add_gguf(*gguf, mode);
  const std::string single = join(directory_, kSingleFile);
  const std::string index = join(directory_, kIndexFile);
  if (exists(single)) {
    RETURN_IF_ERROR(add_shard(single, mode));
  } else if (exists(index)) {
    RETURN_IF_ERROR(open_index(index, mode));
  } else {
    return no_weights(directory_);
  }
  return split_stacked_experts();
}

// After all shards: a layer's two tensors may lie in different ones.
Status WeightStore::split_stacked_experts() {
  std::vector<SafetensorsHeader*> headers;
  for (Shard& shard : shards_) headers.push_back(&shard.header);
  const Result<bool> stacked = unstack_experts(headers);
  if (!stacked.ok()) return stacked.status().with_prefix(directory_);
  if (!*stacked) return ok_status();
  std::vector<Shard> shards = std::exchange(shards_, {});
  slots_.clear();
  total_bytes_ = 0;
  total_elements_ = 0;
  for (Shard& shard : shards) RETURN_IF_ERROR(add_shard(std::move(shard.file), std::move(shard.header)));
  return ok_status();
}

// Lets no exception of the JSON library or the allocator out.
template <typename Open>
Status WeightStore::guarded(const Open& open) {
  try {
    return open();
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kResourceExhausted, "{}: no memory left to list its tensors", directory_);
  } catch (const std::exception& e) {
    return internal_error("{}: {}", directory_, e.what());
  }
}

Result<WeightStore> WeightStore::open(const std::string& directory, MapMode mode, FolderPart part) {
  WeightStore store;
  store.part_ = part;
  store.directory_ = directory;
  RETURN_IF_ERROR(store.guarded([&] { return store.open_directory(mode); }));
  return store;
}

Result<WeightStore> WeightStore::open_file(const std::string& path, MapMode mode) {
  WeightStore store;
  store.directory_ = path;
  RETURN_IF_ERROR(store.guarded([&] { return store.add_shard(path, mode); }));
  return store;
}

const SafetensorsEntry* WeightStore::find(std::string_view name) const {
  const auto at = slots_.find(name);
  return at == slots_.end() ? nullptr : &entry_of(at->second);
}

TensorView WeightStore::view_of(Slot& slot) {
  const SafetensorsEntry& entry = entry_of(slot);
  const Shard& shard = shards_[slot.shard];
  TensorView view{.data = shard.file.bytes().data() + shard.header.data_start + entry.begin,
                  .dtype = entry.dtype,
                  .shape = entry.shape,
                  .device = Device::kHost};
  const std::size_t alignment = is_quantized(entry.dtype) ? kBlockAlignment : dtype_size(entry.dtype);
  const bool small = view.size_bytes() <= kSmallTensorBytes;
  const bool moved = slot.rope_heads > 0 || entry.is_transposed();
  if (reinterpret_cast<std::uintptr_t>(view.data) % alignment == 0 && !moved && !small) return view;
  if (!slot.copy) {
    slot.copy.emplace(view.size_bytes());
    if (entry.is_transposed()) {
      copy_transposed(shard.file.bytes().data() + shard.header.data_start, entry, slot.copy->data());
    } else if (slot.rope_heads > 0) {
      copy_unpermuted(view, slot.rope_heads, slot.copy->data());
    } else if (view.size_bytes() > 0) {
      std::memcpy(slot.copy->data(), view.data, view.size_bytes());
    }
  }
  view.data = slot.copy->data();
  return view;
}

Status WeightStore::missing(std::string_view name, std::string_view wanted) const {
  return error(StatusCode::kNotFound, "{}: no tensor {} among the {} in {} file(s); wanted it{}",
               shards_.size() == 1 ? shards_[0].file.path() : directory_, quoted_name(name), slots_.size(),
               shards_.size(), wanted);
}

Result<TensorView> WeightStore::get_any(std::string_view name) {
  const auto at = slots_.find(name);
  if (at == slots_.end()) return missing(name, "");
  at->second.taken = true;
  return view_of(at->second);
}

Result<DType> WeightStore::take(std::string_view name, const Shape& expected) {
  const auto at = slots_.find(name);
  if (at == slots_.end()) return missing(name, fmt::format(" with shape {}", expected.to_string()));
  const SafetensorsEntry& entry = entry_of(at->second);
  const std::string& path = shards_[at->second.shard].file.path();
  if (!(entry.shape == expected)) {
    return invalid_argument("{}: tensor {} has shape {}; wanted {}", path, quoted_name(name), entry.shape.to_string(),
                            expected.to_string());
  }
  if (entry.dtype != DType::kF32 && entry.dtype != DType::kF16 && entry.dtype != DType::kBF16 &&
      !is_quantized(entry.dtype)) {
    return error(StatusCode::kUnsupported, "{}: tensor {} has dtype {}; wanted F32, F16 or BF16", path,
                 quoted_name(name), dtype_name(entry.dtype));
  }
  at->second.taken = true;
  return entry.dtype;
}

Result<TensorView> WeightStore::get(std::string_view name, const Shape& expected) {
  RETURN_IF_ERROR(take(name, expected).status());
  return view_of(slots_.find(name)->second);
}

void WeightStore::release(std::string_view name) {
  const auto at = slots_.find(name);
  if (at == slots_.end()) return;
  at->second.released = true;
  at->second.copy.reset();
  const SafetensorsEntry& entry = entry_of(at->second);
  const Shard& shard = shards_[at->second.shard];
  shard.file.release(shard.header.data_start + entry.begin, entry.end - entry.begin);
}

void WeightStore::release_rows(std::string_view name, int64_t rows) const {
  const auto at = slots_.find(name);
  if (at == slots_.end()) return;
  const SafetensorsEntry& entry = entry_of(at->second);
  CHECK(entry.shape.rank() > 0 && rows >= 0 && rows <= entry.shape[0]);
  if (rows == 0 || entry.is_transposed()) return;
  const uint64_t row_bytes = (entry.end - entry.begin) / static_cast<uint64_t>(entry.shape[0]);
  const Shard& shard = shards_[at->second.shard];
  shard.file.release(shard.header.data_start + entry.begin, row_bytes * static_cast<uint64_t>(rows));
}

void WeightStore::note_checksum(std::string_view name, uint64_t sum) {
  const auto at = slots_.find(name);
  CHECK(at != slots_.end());
  at->second.checksum = sum;
}

std::optional<uint64_t> WeightStore::noted_checksum(std::string_view name) const {
  const auto at = slots_.find(name);
  return at == slots_.end() ? std::nullopt : at->second.checksum;
}

uint64_t combined_checksum(const std::vector<TensorChecksum>& tensors) {
  std::string all;
  for (const TensorChecksum& tensor : tensors) {
    fmt::format_to(std::back_inserter(all), "{} {} {} {} {:016x}\n", tensor.name.size(), tensor.name,
                   dtype_name(tensor.dtype), tensor.shape.to_string(), tensor.sum);
  }
  return all.empty() ? 0 : std::max<uint64_t>(XXH3_64bits(all.data(), all.size()), 1);  // 0 means none
}

uint64_t WeightStore::checksum() const {
  std::vector<TensorChecksum> tensors;
  for (const auto& [name, slot] : slots_) {
    const SafetensorsEntry& entry = entry_of(slot);
    if (slot.checksum) tensors.push_back({name, entry.dtype, entry.shape, *slot.checksum});
  }
  return combined_checksum(tensors);
}

std::vector<FileStamp> WeightStore::stamps() const {
  std::vector<FileStamp> out;
  for (const Shard& shard : shards_) out.push_back(shard.file.stamp());
  return out;
}

std::vector<std::string> WeightStore::names() const {
  std::vector<std::string> out;
  out.reserve(slots_.size());
  for (const auto& [name, slot] : slots_) out.push_back(name);
  return out;
}

std::vector<std::string> WeightStore::unexpected(const std::vector<std::string_view>& ignore) const {
  std::vector<std::string> out;
  for (const auto& [name, slot] : slots_) {
    if (!slot.taken && !ignored(name, ignore)) out.push_back(name);
  }
  return out;
}

Status WeightStore::check_all_taken(const std::vector<std::string_view>& ignore) const {
  const std::vector<std::string> left = unexpected(ignore);
  if (left.empty()) return ok_status();
  std::string list;
  for (std::size_t i = 0; i < left.size() && i < kMaxNamesInMessage; ++i) {
    list += (i > 0 ? ", " : "") + quoted_name(left[i]);
  }
  if (left.size() > kMaxNamesInMessage) list += fmt::format(" and {} more", left.size() - kMaxNamesInMessage);
  const auto& first = slots_.find(left[0])->second;
  return invalid_argument("{}: holds {} tensor(s) that the model does not use: {}; wanted none",
                          shards_[first.shard].file.path(), left.size(), list);
}

Status WeightStore::load_with_progress(const ProgressFn& progress) {
  uint64_t all = 0, before = 0;
  for (const auto& [name, slot] : slots_) {
    if (slot.in_use()) all += entry_of(slot).end - entry_of(slot).begin;
  }
  if (progress) progress(0, all);
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    for (const auto& [begin, end] : kept_ranges(i)) {
      RETURN_IF_ERROR(shard.file.prefault(shard.header.data_start + begin, end - begin, [&](uint64_t done, uint64_t) {
        if (progress && done > 0) progress(before + done, all);
      }));
      before += end - begin;
    }
    release_unused(i);
  }
  return verify_unchanged();
}

// Reading one page maps its neighbours too: what no view needs goes back to the system.
void WeightStore::release_unused(std::size_t shard) const {
  const MappedFile& file = shards_[shard].file;
  uint64_t at = 0;
  for (const auto& [begin, end] : kept_ranges(shard)) {
    file.release(at, shards_[shard].header.data_start + begin - at);
    at = shards_[shard].header.data_start + end;
  }
  file.release(at, file.size_bytes() - at);
}

// The bytes of a shard's tensors that views look at, neighbours joined, in the order of the file.
std::vector<std::pair<uint64_t, uint64_t>> WeightStore::kept_ranges(std::size_t shard) const {
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const SafetensorsEntry& entry : shards_[shard].header.tensors) {
    if (entry.begin == entry.end || !slots_.find(entry.name)->second.in_use()) continue;
    if (!out.empty() && out.back().second == entry.begin) {
      out.back().second = entry.end;
    } else {
      out.emplace_back(entry.begin, entry.end);
    }
  }
  return out;
}

Status WeightStore::verify_unchanged() const {
  for (const Shard& shard : shards_) RETURN_IF_ERROR(shard.file.verify_unchanged());
  return ok_status();
}

Status WeightStore::check_finite(const ProgressFn& progress) const {
  uint64_t done = 0;
  if (progress) progress(0, total_bytes_);
  for (const Shard& shard : shards_) {
    for (const SafetensorsEntry& entry : shard.header.tensors) {
      const std::byte* data = shard.file.bytes().data() + shard.header.data_start;
      if (const int64_t at = first_not_finite(data, entry); at >= 0) {
        return invalid_argument("{}: element {} of tensor {} ({} {}) is NaN or infinite; wanted finite weights",
                                shard.file.path(), at, quoted_name(entry.name), dtype_name(entry.dtype),
                                entry.shape.to_string());
      }
      if (!slots_.find(entry.name)->second.in_use()) {
        shard.file.release(shard.header.data_start + entry.begin, entry.end - entry.begin);
      }
      done += entry.end - entry.begin;
      if (progress) progress(done, total_bytes_);
    }
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) release_unused(i);
  return ok_status();
}

Result<WeightStore> open_safetensors_file(const std::string& path, MapMode mode) {
  return WeightStore::open_file(path, mode);
}

}  // namespace millrace
