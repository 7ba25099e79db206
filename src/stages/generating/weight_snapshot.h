// A snapshot: the weights that serve as a model folder, so that a replica that is started again finds them, and
// `serve --model` too. It has the tensors of the serving model in the dtypes in which they came, in files with the
// names that the model's own folder has, and that folder's small files: configuration, tokenizer, templates.
//
//   DIR/weights-20261126T020500Z-000002/   complete: it comes to be in one step, after all its bytes are on the disk
//   DIR/.weights-20261126T020500Z-000002.part/   one that is being written, or was when its writer died
//
// Every tensor is compared with the checksum of its bytes as they came before it counts. millrace-snapshot.json lists
// what the folder holds (formats/snapshot_manifest.h).
//
// Thread safety: free functions; one writer for a folder DIR at a time.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "stages/generating/model_options.h"

namespace millrace {

// In the folder; older ones are removed, but for those that a replica may be started with.
inline constexpr std::size_t kKeptSnapshots = 2;
inline constexpr uint64_t kMaxSmallFileBytes = uint64_t{64} << 20;  // of the model's folder, that is copied

// Whether a stage with these options can write snapshots: kInvalidArgument or kUnsupported where it cannot. Nothing to
// check without a folder.
Status check_snapshots(const ModelOptions& options);

// Names of the folders in `folder`, the oldest first: of snapshots, complete by their names, and of those
// whose writer has not ended.
std::vector<std::string> snapshot_names(const std::string& folder);
std::vector<std::string> unfinished_snapshot_names(const std::string& folder);

// Which model the folder `model` holds; that of a snapshot is the one that was trained.
Result<uint64_t> base_model_hash(const std::string& model);

// Writes `model`, of the folder options.model, and gives the path of the snapshot. `label`: of its weights. `stop`: it
// ends with kCancelled soon after this is true. Other errors name the path or the tensor; nothing is left of a snapshot
// that failed. Memory: one tensor as it came.
Result<std::string> write_snapshot(const Model& model, const ModelOptions& options, const std::string& label,
                                   const std::atomic<bool>& stop);

}  // namespace millrace
