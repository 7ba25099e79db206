// The subcommands of the millrace program. Each returns the process's exit code: 0, 1 (it failed) or kExitBadInput.
// Thread safety: called once, by main.
#pragma once

#include "app/options.h"

namespace millrace {

extern const char* const kVersion;  // of git, or the project's: cmake/version.cmake

int run_serve(const ServeOptions& options);
int run_stage(const StageOptions& options);  // a child of serve, or stages that a person started
int run_chat(const ChatOptions& options);
int run_pipeline(const PipelineOptions& options);
int run_inspect(const InspectOptions& options);

}  // namespace millrace
