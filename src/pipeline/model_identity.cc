#include "pipeline/model_identity.h"

#include <algorithm>

#include "base/xxh3.h"
#include "stages/generating/tensors_hash.h"
#include "stages/generating/text_checksum.h"

namespace millrace {
namespace {

// The lowest bits: xxh3 spreads over all of them.
uint64_t bits(uint64_t hash, int count) { return hash & ((uint64_t{1} << count) - 1); }

Result<uint64_t> weights_sum(const ModelOptions& options) {
  ASSIGN_OR_RETURN(const uint64_t tensors, tensors_hash(options.model));
  FieldsChecksum sum;
  sum.add(options.kv_dtype);
  sum.add(options.quantize);
  sum.add(options.activations);
  sum.add(&tensors, sizeof(tensors));
  return std::max<uint64_t>(bits(sum.value(), kWeightsBits), 1);  // 0 means none
}

}  // namespace

uint64_t ModelIdentity::packed() const { return file << (kTextBits + kWeightsBits) | text << kWeightsBits | weights; }

ModelIdentity ModelIdentity::unpack(uint64_t packed) {
  return {.file = packed >> (kTextBits + kWeightsBits),
          .text = bits(packed >> kWeightsBits, kTextBits),
          .weights = bits(packed, kWeightsBits)};
}

Result<ModelIdentity> identify(const PipelineSpec& spec, const ModelOptions& options, bool weights_needed) {
  ModelIdentity out{.file = bits(spec.hash(), kFileBits)};
  ASSIGN_OR_RETURN(const uint64_t text, text_checksum(options.model));
  out.text = bits(text, kTextBits);
  const auto weights = weights_sum(options);
  if (weights.ok()) {
    out.weights = *weights;
    // Files that are there and cannot be read are an error also where none are needed.
  } else if (weights_needed || weights.status().code() != StatusCode::kNotFound) {
    return weights.status();
  }
  return out;
}

Status same_identity(const ModelIdentity& theirs, const ModelIdentity& ours) {
  const char* what = nullptr;
  // In the sequence of what explains the rest: with another file the model is likely another one, too.
  if (theirs.file != ours.file) {
    what = "pipeline: start both with the same file";
  } else if (theirs.text != ours.text) {
    what = "model: config.json, generation_config.json, tokenizer.json or tokenizer_config.json differ";
  } else if (theirs.weights != ours.weights && theirs.weights != 0 && ours.weights != 0) {
    what = "model: the weights, --kv-dtype, --quantize or --activations differ";
  }
  if (what == nullptr) return ok_status();
  return error(StatusCode::kConflict, "another {} ({:016x} there, {:016x} at the coordinator)", what, theirs.packed(),
               ours.packed());
}

}  // namespace millrace
