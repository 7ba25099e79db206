// Where a model that a user names lies: a path, or ORG/NAME[:QUANT] of a hub, from the cache or pulled into it.
//
// Thread safety: the main thread.
#pragma once

#include <signal.h>

#include <optional>
#include <string>

#include "base/status.h"
#include "hub/pull.h"
#include "hub/settings.h"

namespace millrace {

// Pulls with progress on standard error; a signal of `signals`, which are blocked, ends it (kCancelled).
Result<hub::CachedModel> pull_model(const hub::HubSettings& settings, const hub::PullOptions& options,
                                    const sigset_t& signals);

struct ModelSource {
  std::string path;
  std::string name;  // as clients may call it: "ORG/NAME", "ORG/NAME:QUANT"; "": it was a path
};

// What a name means without a network.
struct ModelLookup {
  ModelSource source;                         // complete where `wanted` is none
  std::optional<hub::ModelReference> wanted;  // of a hub, and not in the cache
  std::optional<hub::CachedModel> cached;     // of a hub, and in the cache
  hub::HubSettings settings;                  // where one of the two is
};

// A path that is there, or that is no such name, stays as it is. Then the cache; nothing is asked of a network where
// the model is in it. `revision`: "": main.
Result<ModelLookup> look_up_model(const std::string& model, const std::string& revision);
// kNotFound where the cache lacks it: for a command that does not pull.
Result<ModelSource> cached_source(const std::string& model, const std::string& revision);
// What the cache lacks is pulled.
Result<ModelSource> pulled_source(const std::string& model, const std::string& revision, const sigset_t& signals);

}  // namespace millrace
