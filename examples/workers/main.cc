// The program millrace-examples: millrace with the example workers.
#include "app/program.h"
#include "examples/workers/workers.h"

int main(int argc, char** argv) { return millrace::run_millrace(argc, argv, millrace::add_example_workers); }
