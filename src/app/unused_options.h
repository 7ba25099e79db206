// Options of `serve` that the pipeline it runs does not use: said, never ignored. Pure; any thread.
#pragma once

#include "app/options.h"
#include "pipeline/spec.h"

namespace millrace {

// `spec` as its file says it, before options stand instead of its keys. kInvalidArgument names the option that was
// given in vain, and where what it means is said.
Status check_used(const ServeOptions& options, const PipelineSpec& spec);

}  // namespace millrace
