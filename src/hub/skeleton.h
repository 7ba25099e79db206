// A model's skeleton: a folder with the configuration of a model of a hub and, of its weights, the headers: files of
// the full size without blocks behind them. It opens as the model does, and what it holds is read without its bytes.
//
// Thread safety: free functions that block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/reference.h"
#include "hub/repository.h"
#include "hub/retry.h"
#include "hub/settings.h"

namespace millrace::hub {

inline constexpr uint64_t kMaxFetchedHeaderBytes = 64 << 20;  // of one file

struct Skeleton {
  ModelReference reference;  // with the quantization, of a GGUF repository
  std::string commit;
  std::string path;               // to open: the folder, or a GGUF file in it
  std::vector<RemoteFile> files;  // that a pull would get
};

// Into the empty `folder`. The errors of pull().
Result<Skeleton> fetch_skeleton(const HubSettings& settings, const ModelReference& reference,
                                const std::string& revision, const std::string& folder, const TransferControl& control);

}  // namespace millrace::hub
