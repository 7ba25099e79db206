// Which weights a server starts with: those of the newest complete snapshot of its model in --weights-snapshot-dir, so
// that a restart goes on where a trainer's updates have come to, or the model's own.
//
// The server chooses once, before its stages start. They get the choice as options.start_weights, and a replica that is
// started again later begins with the same weights, then loads what serves by then.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "stages/generating/model_options.h"

namespace millrace {

struct StartWeights {
  uint64_t version = 0;  // the server goes on counting from here
  std::string label;
  uint64_t checksum = 0;  // of the weights
  std::string path;       // of the snapshot, absolute
};

inline constexpr const char* kStartNewest = "newest";  // values of options.start_weights beside paths
inline constexpr const char* kStartModel = "model";

inline bool starts_from_snapshot(const ModelOptions& options) {
  return !options.start_weights.empty() && options.start_weights != kStartNewest &&
         options.start_weights != kStartModel;
}
// Where the weights of version 1, or of the snapshot, are.
inline const std::string& weights_folder(const ModelOptions& options) {
  return starts_from_snapshot(options) ? options.start_weights : options.model;
}

// nullopt: the model's own, also where options.model is a snapshot itself. Reads every byte of the snapshot. One that
// is damaged or not complete is skipped with a warning, unless options.start_weights names it. kInvalidArgument: it is
// of another model, or the options cannot be.
Result<std::optional<StartWeights>> find_start_weights(const ModelOptions& options);

}  // namespace millrace
