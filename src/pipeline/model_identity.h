// ModelIdentity: what all hosts of one text pipeline must have in common, small enough to be compared when a stage
// joins.
//
// Each part is a checksum, not a proof: it finds mistakes (an edited file, another model, other weights of the same
// shape) before anything is loaded, and every process that may join has the key anyway. What was loaded is compared
// afterwards, with every byte of it (Membership).
//
// Thread safety: values; free functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "pipeline/spec.h"
#include "stages/generating/model_options.h"

namespace millrace {

inline constexpr int kFileBits = 22, kTextBits = 21, kWeightsBits = 21;  // of the 64 of wire::Register::spec_hash

struct ModelIdentity {
  uint64_t file = 0;  // the pipeline's
  uint64_t text = 0;  // config.json, generation_config.json, tokenizer.json, tokenizer_config.json
  uint64_t weights =
      0;  // names, types, shapes and samples of the tensors, and how they and the KV are stored; 0: not known here

  uint64_t packed() const;
  static ModelIdentity unpack(uint64_t packed);
  friend bool operator==(const ModelIdentity&, const ModelIdentity&) = default;
};

// Reads the small files whole and a few bytes of each tensor. A host that generates must have weights; with
// `weights_needed` false, a directory without them is fine.
Result<ModelIdentity> identify(const PipelineSpec& spec, const ModelOptions& options, bool weights_needed);

// kConflict names the part that differs, for both sides. Unknown weights differ from nothing.
Status same_identity(const ModelIdentity& theirs, const ModelIdentity& ours);

}  // namespace millrace
