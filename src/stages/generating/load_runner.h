// From a model directory to the runner of a generating stage: a model in this process, or the first range of a chain.
// The other ranges are processes that are started for it (--pp), or stages of the pipeline's file.
//
// The first range decides how many KV pages there are, how large they are and how many rows a step has; the others
// allocate them when its hello comes.
//
// Thread safety: free functions; what they make is called on the thread that loads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runner/chain_links.h"
#include "runner/range_server.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/model_options.h"
#include "stages/library.h"

namespace millrace {

// Starts and connects the other ranges of so many. Errors end the load.
using StartRanges = std::function<Result<ChainLinks>(const ModelOptions& options, uint32_t ranges)>;

// Opens the weights, brings them into memory with progress, builds the model and its runner. `start`: for --pp.
// `chain`: of the stage; null: its file gives it no layers.
LoadRunner make_load_runner(const ModelOptions& options, StartRanges start, std::shared_ptr<const ChainSlot> chain);

// The layers of each range, as --pp and --split ask for. Every process of a chain comes to the same.
Result<std::vector<LayerRange>> split_layers(const ModelOptions& options);

// Another range than the first, number `index` from 0, with the weights of its layers alone.
Result<std::unique_ptr<RangeServer>> load_range(const ModelOptions& options, const std::vector<LayerRange>& ranges,
                                                uint32_t index, ChainLinks links, const LoadProgress& progress);

// Of the model's small files and its tensors, and how they are held.
Result<uint64_t> model_hash(const ModelOptions& options);

// What this process computes products with, as kernels::arithmetic_name() has it. The errors of kernels::resolve_isa().
Result<std::string> arithmetic_of(const ModelOptions& options);

// What another server's pages must be like to be used by a runner that was loaded so. Of one that cannot read and write
// pages, page_bytes is 0.
Result<wire::KvFormat> kv_format(const ModelOptions& options, const RunnerFacts& facts);

}  // namespace millrace
