// The millrace program.
#include "app/program.h"

int main(int argc, char** argv) { return millrace::run_millrace(argc, argv); }
