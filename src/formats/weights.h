// The weights of a model by the names of its Hugging Face folder: model.safetensors, the shards that
// model.safetensors.index.json names, or a GGUF file (or its shards), whose names, extents, rows and stacked experts
// are translated. Experts that a folder stacks are split (formats/stacked_experts.h), and the prefixes of
// vision-language models removed (formats/tensor_names.h).
//
//   ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(dir));
//   ASSIGN_OR_RETURN(TensorView embed, store.get("model.embed_tokens.weight", {vocab, hidden}));
//   ...
//   RETURN_IF_ERROR(store.check_all_taken({"lm_head.weight", ".rotary_emb.inv_freq"}));
//
// Invariants: every view points into bytes that the store owns and stays valid until the store is destroyed or the
// tensor is released (moving the store keeps views valid); a view's data is aligned to its element size, even where the
// file's is not, and has its rows in the order of the Hugging Face folder, even where the file's have another or the
// file holds columns (such a tensor is copied when it is first asked for, and so is a small one, whose page would stay
// in memory for its sake).
// Thread safety: get() and load_with_progress() from one thread at a time; the views may be read from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/mapped_file.h"
#include "formats/safetensors.h"
#include "formats/tensor_names.h"
#include "tensor/tensor.h"

namespace millrace {

inline constexpr uint64_t kMaxIndexFileBytes = 64u << 20;
inline constexpr std::size_t kSmallTensorBytes = 64u << 10;  // the largest that is copied

// One tensor as a reader has summed it.
struct TensorChecksum {
  std::string_view name;
  DType dtype = DType::kF32;  // as it came, before it is quantized
  const Shape& shape;
  uint64_t sum = 0;
};
// Over all of them, sorted by name; 0: there are none.
uint64_t combined_checksum(const std::vector<TensorChecksum>& tensors);

class WeightStore {
 public:
  // Opens and validates every shard's header; no tensor byte is read yet (MapMode::kCopy reads them all).
  // Errors name the file: kNotFound (no weights, a missing shard), kInvalidArgument (malformed index or shard, a shard
  // name that leaves the directory, a tensor in two shards, an indexed tensor that its shard lacks), and those of
  // parse_safetensors. A total_size in the index that differs from the bytes found is only logged as a warning.
  // `path` is a directory or a GGUF file.
  // `part`: the language model whose tensors have plain names (formats/tensor_names.h).
  static Result<WeightStore> open(const std::string& path, MapMode mode = MapMode::kMap,
                                  FolderPart part = FolderPart::kModel);
  // The same over one safetensors file outside a model directory (golden data of tests).
  static Result<WeightStore> open_file(const std::string& path, MapMode mode = MapMode::kMap);

  // The tensor as stored: F32, F16, BF16 or quantized. Marks it as taken; may be called again. Errors: kNotFound (no
  // such tensor), kInvalidArgument (another shape), kUnsupported (another dtype); they name file, tensor, seen and
  // wanted.
  Result<TensorView> get(std::string_view name, const Shape& expected);

  // The checks of get() and its mark, and of the tensor only its dtype: no byte of it is looked at.
  Result<DType> take(std::string_view name, const Shape& expected);

  // Any stored dtype and shape (golden data of tests, `millrace inspect`). Marks it as taken. kNotFound.
  Result<TensorView> get_any(std::string_view name);

  // The memory behind a tensor is not needed for now (it was copied elsewhere): views of it must not be used any more,
  // and asking again costs a read of the file. Nothing where there is no such tensor.
  void release(std::string_view name);
  // The same for the first `rows` rows alone, of which the view stays valid; the tensor does not count as released.
  void release_rows(std::string_view name, int64_t rows) const;

  // A reader has read all bytes of a tensor that it uses: their checksum, by a rule of its own.
  void note_checksum(std::string_view name, uint64_t sum);
  std::optional<uint64_t> noted_checksum(std::string_view name) const;
  // Over names, dtypes, shapes and noted checksums of all tensors that have one; 0: none has.
  uint64_t checksum() const;

  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // The file's entry of a tensor, without taking it; nullptr when there is none. Valid while the store lives.
  const SafetensorsEntry* find(std::string_view name) const;

  // All names, sorted.
  std::vector<std::string> names() const;
  // Names that get() was never asked for and that no entry of `ignore` matches, sorted. An entry matches a name that is
  // equal to it or ends with it.
  std::vector<std::string> unexpected(const std::vector<std::string_view>& ignore) const;
  // kInvalidArgument naming the first unexpected tensors: a weight that the model does not use means the wrong model.
  Status check_all_taken(const std::vector<std::string_view>& ignore) const;

  uint64_t total_bytes() const { return total_bytes_; }  // of all tensors
  int64_t total_elements() const { return total_elements_; }
  std::size_t shard_count() const { return shards_.size(); }
  // Of every shard, in the order in which they were opened.
  std::vector<FileStamp> stamps() const;
  const std::string& directory() const { return directory_; }

  // Brings the pages of all tensors that were taken and not released into memory, releases all others, then verifies
  // that no file changed under us. kConflict when one did.
  Status load_with_progress(const ProgressFn& progress);
  Status verify_unchanged() const;

  // Reads every F32, F16, BF16 and F64 element and the scales of every quantized block; kInvalidArgument naming the
  // first NaN or infinity: file, tensor, index.
  Status check_finite(const ProgressFn& progress = {}) const;

 private:
  struct Shard {
    MappedFile file;
    SafetensorsHeader header;
  };
  struct Slot {
    std::size_t shard = 0;
    std::size_t tensor = 0;  // index into the shard's header.tensors
    bool taken = false;
    bool released = false;
    std::optional<uint64_t> checksum;
    int rope_heads = 0;          // > 0: the file's rows are permuted for interleaved RoPE, this many heads
    std::optional<Buffer> copy;  // of one that is small, misaligned or transposed in its file, or has permuted rows

    bool in_use() const { return taken && !released && !copy; }  // of the file's own bytes
  };

  Status add_shard(const std::string& path, MapMode mode);
  Status add_shard(MappedFile file, SafetensorsHeader header);
  Status add_gguf(const std::string& path, MapMode mode);
  Status add_tower_file(const std::string& model_file, MapMode mode);
  std::vector<std::pair<uint64_t, uint64_t>> kept_ranges(std::size_t shard) const;
  void release_unused(std::size_t shard) const;
  Status open_index(const std::string& index_path, MapMode mode);
  Status open_directory(MapMode mode);
  Status split_stacked_experts();
  template <typename Open>
  Status guarded(const Open& open);
  Status missing(std::string_view name, std::string_view wanted) const;
  TensorView view_of(Slot& slot);
  const SafetensorsEntry& entry_of(const Slot& slot) const { return shards_[slot.shard].header.tensors[slot.tensor]; }

  std::string directory_;
  FolderPart part_ = FolderPart::kModel;
  std::vector<Shard> shards_;
  std::map<std::string, Slot, std::less<>> slots_;
  uint64_t total_bytes_ = 0;
  int64_t total_elements_ = 0;
};

// WeightStore::open_file.
Result<WeightStore> open_safetensors_file(const std::string& path, MapMode mode = MapMode::kMap);

}  // namespace millrace
