// Options of `serve` that the pipeline it runs does not use: refused, never ignored. Pure; any thread.
#pragma once

#include <string>

#include "app/options.h"
#include "pipeline/spec.h"
#include "stages/engine.h"

namespace millrace {

// `spec` as in its file, before options stand instead of its keys. kInvalidArgument names the option that was given
// in vain, and where to set what it means.
Status check_used(const ServeOptions& options, const PipelineSpec& spec);

// Of pictures, audio and videos, where the model takes none; but for those that are of several models.
Status check_media_used(const ServeOptions& options, const MediaFacts& media, const std::string& model);

}  // namespace millrace
