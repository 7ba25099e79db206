// A stage `generate` whose long prompts another stage computes (prefill_from), in a pipeline's file or by
// `serve --prefill`. KV pages come from it; payloads never do.
//
// Thread safety: free functions.
#pragma once

#include <string>

#include "pipeline/spec.h"

namespace millrace {

// Gives the stage that generates, of a text pipeline on one host, `replicas` that compute prompts for it; those of the
// file are replaced. After hash(), as override_replicas(). kInvalidArgument: the file, or why it cannot be.
Status set_prefill_replicas(PipelineSpec& spec, const std::string& file, int replicas);

}  // namespace millrace
