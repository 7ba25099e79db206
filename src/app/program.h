// run_millrace: the millrace program as a function: it parses the command line and runs one subcommand.
//
// A program with workers of its own is a main() that passes a function which adds them (examples/workers/main.cc).
// Child processes are the same program again, so they have the same workers.
//
// Thread safety: called once, by main.
#pragma once

#include "app/library.h"

namespace millrace {

// The exit code of the process.
int run_millrace(int argc, char** argv, AddWorkers add_workers = nullptr);

}  // namespace millrace
