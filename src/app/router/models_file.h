// The file of --models-file: models of a router, and options that one of them has for itself.
//
//   small:                          # a name; of one that --model or --models-dir has, what follows is added
//     model: ORG/NAME:Q4_K_M        # as --model takes it: a path or a name of a hub; wanted for a name that is new
//     alias: [gpt-4o-mini]          # further names
//     pin: true                     # as --pin-model
//     ttl-s: 600                    # in place of --model-ttl; 0: never
//     quantize: q8_0                # any option of `serve` that a model may have for itself
//
// Thread safety: one thread, at the start.
#pragma once

#include <string>
#include <vector>

#include "app/router/model_list.h"
#include "base/status.h"

namespace millrace {

// kInvalidArgument names file, line and what is wrong; kNotFound: it cannot be read.
Status add_models_file(const std::string& path, std::vector<ServedModel>& models);

}  // namespace millrace
