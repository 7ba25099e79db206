// SplitPlan: which layers each range of a layer split holds, and what that costs in memory and in reads.
//
// The first range holds the embedding, and also the final norm and the vocabulary matrix: rows return to it from the
// last layer (models/model.h). So a tied matrix is held once. Bytes are those of the tensors as the files store them;
// `--quantize` and packing change the numbers, and hardly the shares.
//
// Thread safety: values and free functions. No tensor byte is read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/model_config.h"
#include "formats/weights.h"
#include "models/model.h"
#include "wire/limits.h"

namespace millrace {

inline constexpr int kMaxRanges = static_cast<int>(wire::kMaxRanges);
inline constexpr int64_t kMaxSplitKvTokens = int64_t{1} << 30;

// What each part of a model holds, and what a decode step of one sequence reads of it.
struct ModelSizes {
  struct Part {
    uint64_t bytes = 0;  // held
    uint64_t read = 0;   // of them, in a decode step: of a mixture of experts, those of the chosen ones
  };
  std::vector<Part> layers;  // one for each layer
  Part first;                // embedding, final norm and vocabulary matrix; of the embedding one row is read
};

// From the names, shapes and dtypes of `store`. Tensors that no range reads (a tied head that is stored too, rotary
// frequencies) count nothing.
ModelSizes model_sizes(const ModelConfig& config, const WeightStore& store);

struct SplitRule {
  enum class Kind : uint8_t {
    kEven,      // the first L mod S ranges have one layer more
    kBalanced,  // the least maximum of the bytes that a decode step reads
    kMemory,    // the least maximum of the bytes held: weights, and the KV of `kv_tokens` tokens
    kCounts,    // layers of each range, by hand
  };
  Kind kind = Kind::kEven;
  std::vector<int> counts;  // of kCounts
};

// "even", "balanced", "memory", or counts: "19,9". kInvalidArgument with the text seen.
Result<SplitRule> parse_split_rule(std::string_view text);

struct SplitPlan {
  struct Range {
    LayerRange layers;  // empty only where it is the first
    uint64_t weight_bytes = 0;
    uint64_t decode_bytes = 0;    // read in a decode step
    uint64_t kv_token_bytes = 0;  // of one token
    uint64_t kv_bytes = 0;        // of kv_tokens
  };
  std::vector<Range> ranges;
  int64_t kv_tokens = 0;
};

// `kv_layer_token_bytes`: K and V of one token in one layer. `kv_tokens`: 1 to kMaxSplitKvTokens. With kCounts,
// `ranges` is 0 or their number. Every range has a layer, except that by kBalanced, kMemory and kCounts the first may
// have none. Errors, kInvalidArgument with the value seen and the value wanted: `ranges` outside 1 to min(L,
// kMaxRanges); counts that are not as many as `ranges`, that do not sum to L, or that leave a later range empty;
// kv_tokens out of range.
Result<SplitPlan> plan_split(const ModelSizes& sizes, const SplitRule& rule, int ranges, uint64_t kv_layer_token_bytes,
                             int64_t kv_tokens);

}  // namespace millrace
