// What the cache holds, and how it goes.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/pull.h"

namespace millrace::hub {

struct ListedModel {
  CachedModel model;                   // of a pull that did not end: the name, and the bytes that are there
  std::vector<std::string> revisions;  // that lead to its commit
  std::time_t modified = 0;            // of the snapshot
  bool complete = true;
};

// Every model that can be served, and what a pull has begun, by name.
std::vector<ListedModel> list_models(const Cache& cache);

struct Removed {
  std::vector<std::string> models;  // as list_models() names them
  uint64_t bytes = 0;               // that are free now
};

// Without a quantization all that the cache has of the repository, of every revision and of other tools; with one, its
// files, and of their blobs those that no other file is. kNotFound; kConflict: it is being pulled.
Result<Removed> remove_model(const Cache& cache, const ModelReference& reference);

// Whether remove_model() takes files of the model at `path`, a folder or a GGUF file, which may lie elsewhere too.
bool is_removed_with(const Cache& cache, const ModelReference& reference, const std::string& path);

}  // namespace millrace::hub
