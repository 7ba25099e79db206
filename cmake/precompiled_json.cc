// The functions that precompiled_json.h promises; in the library of src/base, which every other one links.
#define MILLRACE_JSON_INSTANCES template
#include "precompiled_json.h"
