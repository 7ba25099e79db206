// The models that one server may serve: their names, other names, where they are and what they take.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/model_summary.h"
#include "base/status.h"

namespace millrace {

inline constexpr std::size_t kMaxModels = 256;  // of one server

struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;
  std::string path;                      // as `serve` takes it: a path, or ORG/NAME[:QUANT] of a hub
  uint64_t bytes = 0;                    // of its weights, as they are stored; 0: not known before it is there
  int context = 0;                       // tokens, as its server has them; 0: not known
  std::string architecture{};            // "": not known
  api::ModelSummary files{};             // of one that is not on this host, the digest is of its name
  bool pinned = false;                   // loaded from the start, and never given up for another one
  std::optional<int> ttl_s{};            // in place of --model-ttl
  std::vector<std::string> arguments{};  // of its server, in place of those of all (models_file.h)
};

struct ModelListOptions {
  std::vector<std::string> models;   // "PATH", "ORG/NAME[:QUANT]" or "NAME=" and one of both
  std::string folder;                // with models in it: folders, GGUF files, and both one folder deeper
  std::vector<std::string> aliases;  // "ALIAS=NAME"
  std::vector<std::string> pinned;   // names
  std::string file;                  // of --models-file
  bool cached = false;               // those in the cache of a hub too, and none at all is no error
  int context_length = 0;            // of all models that have none for themselves; 0: a model's own
};

// In the sequence of the options, those of the folder by name. kInvalidArgument: names that are there twice or not at
// all, or no model.
Result<std::vector<ServedModel>> list_models_to_serve(const ModelListOptions& options);

// Its files: a path, or of a hub what the cache has. nullopt: they are not there.
std::optional<std::string> local_path(const ServedModel& model);

// Adds what its files show: bytes, context, architecture. `context_length`: as in ModelListOptions.
void describe_model(ServedModel& model, int context_length);

// Whether it is "NAME=MODEL".
bool is_named_model(const std::string& text);

// The model of that name or alias; also with Ollama's ":latest" behind it. nullptr: there is none.
const ServedModel* find_model(const std::vector<ServedModel>& models, std::string_view name);

}  // namespace millrace
