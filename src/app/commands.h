// The subcommands of the millrace program. Each returns the process's exit code: 0, 1 (it failed) or kExitBadInput.
// Thread safety: called once, by main.
#pragma once

#include "app/library.h"
#include "app/options.h"

namespace millrace {

extern const char* const kVersion;  // of git, or the project's: cmake/version.cmake

int run_serve(const ServeOptions& options, AddWorkers add_workers);
// A child of serve, or stages that a person started.
int run_stage(const StageOptions& options, AddWorkers add_workers);
// A child of the process that has the first range of a layer split.
int run_range(const RangeOptions& options);
int run_chat(const ChatOptions& options);
int run_top(const TopOptions& options);
int run_pipeline(const PipelineOptions& options, AddWorkers add_workers);
int run_inspect(const InspectOptions& options);

}  // namespace millrace
