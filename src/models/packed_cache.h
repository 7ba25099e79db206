// PackedCache: a model's packed matrices in a file (formats/packed_file.h), so that the next start reads them instead
// of packing and quantizing again.
//
//   PackedCache cache(directory, "qwen3-0.6b", *store, load);     load.packed_cache = &cache;
//   ASSIGN_OR_RETURN(auto model, load_model(config, store, 1, load));
//   ... store->verify_unchanged() ...
//   cache.save();
//
// They are read into memory, not mapped: products read a file's pages of 4 KiB a fifth slower than huge pages, and what
// was read and found right stays right whatever becomes of the file. Nothing is ever written but by save(); a model
// that gets new weights has new ones in memory.
//
// Never other weights than without it. A file is found by a key over its format, what this program's layouts and
// quantizer make of small matrices, --quantize, and the names, dtypes and shapes of the model. A matrix is taken from
// it when its checksum is right and it was made of the model's bytes: either the model's files are the very ones it was
// made from (inode, size, times of modification and of change, FileStamp), or else the checksum of the matrix in the
// model's file, read in full, is the one noted. Any other is packed as without a cache, and save() writes a new file.
//
// Nothing that is wrong with the cache ends a load: a warning has what was seen and wanted.
//
// Owner: the function that loads a model; gone after save(). Thread safety: one thread at a time; drives the load's
// pool.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "formats/packed_file.h"
#include "formats/weights.h"
#include "kernels/weight.h"
#include "models/load_options.h"

namespace millrace {

class PackedCache {
 public:
  // `model_name` begins the file's name, for people. `store` and load.pool must outlive it.
  PackedCache(std::string directory, std::string_view model_name, WeightStore& store, const LoadOptions& load);

  // The matrix `name` of the store, which the caller has taken, as `dtype`: from the file, or as `pack` makes it of the
  // store's view. Notes the checksum of its bytes in the store. Errors: those of the store and of `pack`.
  using Pack = FunctionRef<Result<kernels::Weight>(const TensorView& view)>;
  Result<kernels::Weight> matrix(std::string_view name, const Shape& shape, DType dtype, Pack pack);

  // Writes the file where a matrix was not in it; `progress` counts what is written. Call when the store's files are
  // known to be unchanged.
  void save(const ProgressFn& progress = {});

  const std::string& path() const { return path_; }
  // The model's files are the very ones that the file was made from: they need not be read.
  bool same_files() const { return same_files_; }
  // Matrices so far that the file did not have.
  std::size_t packed() const { return packed_; }

 private:
  struct Held {
    std::string name, made_of;
    kernels::Weight weight;
  };

  std::optional<kernels::Weight> read(const PackedFile::Run& run, const Held& held, const Shape& shape, DType dtype);
  void warn(const Status& status);

  const std::string directory_;
  WeightStore& store_;
  const LoadOptions load_;
  std::string source_;  // the store's files; empty where they cannot be known again
  std::string key_, path_;
  std::optional<PackedFile> file_;
  bool same_files_ = false;
  bool warned_ = false;
  std::vector<Held> held_;  // all matrices asked for, in this order
  std::size_t packed_ = 0;  // of these, the ones that the file did not have
};

}  // namespace millrace
