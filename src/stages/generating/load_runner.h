// From a model directory to the runner of a generating stage: a model in this process, or the first range of a chain
// whose other ranges are processes that `open` starts (--pp).
//
// Thread safety: free functions; what they make is called on the thread that loads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runner/chain_links.h"
#include "runner/range_server.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/model_options.h"

namespace millrace {

// The ranges behind the first one: what they are started with.
struct ChainSize {
  uint32_t ranges = 2;  // of the chain, the first one included
  int32_t page_count = 0;
  int32_t host_page_count = 0;
};
// Starts them and connects them. Errors end the load.
using OpenChain = std::function<Result<ChainLinks>(const ModelOptions& options, const ChainSize& size)>;

// Opens the weights, brings them into memory with progress, builds the model and its runner.
LoadRunner make_load_runner(const ModelOptions& options, OpenChain open);

// Another range than the first, number `index` from 0, with the weights of its layers alone.
Result<std::unique_ptr<RangeServer>> load_range(const ModelOptions& options, uint32_t index, const ChainSize& size,
                                                ChainLinks links, const LoadProgress& progress);

}  // namespace millrace
