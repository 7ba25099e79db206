// Between a part of a batch and the message that takes it to the next range (wire/layer_messages.h): making one, and
// what a range asks of one before it computes anything.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "formats/model_config.h"
#include "kernels/ops.h"
#include "kv/page_copy.h"
#include "runner/chain_batches.h"
#include "runner/runner_options.h"
#include "wire/layer_messages.h"

namespace millrace {

// What all ranges of a chain must have in common. `model_hash`: of the model's files and how they are loaded.
wire::ChainFacts chain_facts(const ModelConfig& config, const RunnerOptions& options, kernels::Isa isa,
                             uint64_t model_hash, uint64_t weight_version);
// kConflict, with the first value that differs and the one wanted.
Status check_same_chain(const wire::ChainFacts& seen, const wire::ChainFacts& wanted);
// Of the weights of the ranges before, and of those here.
uint64_t chain_checksum(uint64_t before, uint64_t here);

// All but the epoch, the ranges, the number and the rows; complete page tables.
wire::LayerStep make_layer_step(const OutgoingPart& part);

// A copy of rows, without a checksum: the message's numbers belong to it.
wire::LayerRows pack_rows(kernels::ConstRows rows);
// Of rows that the codec has checked.
kernels::ConstRows rows_of(const wire::LayerRows& rows);

// What of a part the ranges behind layer `end` need; nullopt: it has no pictures.
std::optional<wire::LayerMedia> pack_media(const Part& part, int end, int64_t hidden_size);
// The same without what no range behind layer `end` needs.
wire::LayerMedia media_behind(wire::LayerMedia media, int end, int64_t hidden_size);
// Views of what the codec has checked.
std::span<const std::array<float, 3>> positions_of(const wire::LayerMedia& media);
std::vector<RowAddition> additions_of(const wire::LayerMedia& media, int64_t hidden_size);

// What the codec cannot know: the checksum, and shapes, pages and weights of this range. `tables`: one for each
// sequence. kInvalidArgument with the value seen and the one wanted.
using StepTables = std::vector<std::span<const int32_t>>;
Status check_layer_step(const wire::LayerStep& step, const StepTables& tables, const wire::ChainFacts& facts);
Status check_layer_result(const wire::LayerResult& result, const wire::ChainFacts& facts);

// The copies of a step; the codec has checked that they come in threes. kInvalidArgument for another direction.
Result<std::vector<PageCopy>> copies_of(const wire::LayerStep& step);

}  // namespace millrace
