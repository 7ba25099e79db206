// Whether weights of one folder may serve with the configuration of another: weights are updated, the configuration of
// the start stays, so every field that changes an answer must be the same in both.
//
// Thread safety: free functions.
#pragma once

#include "base/status.h"
#include "formats/model_config.h"

namespace millrace {

// kInvalidArgument names the first field that differs, as config.json calls it, with both values. Not compared: dtype,
// which the tensors have themselves, ids that no step looks at (bos, pad), and end tokens that `seen` does not name.
Status check_same_config(const ModelConfig& seen, const ModelConfig& wanted);

}  // namespace millrace
