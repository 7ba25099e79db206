// The workers that text pipelines name, known by their names alone. Thread safety: free function.
#pragma once

#include "stages/library.h"

namespace millrace::testing {

inline Library text_library() {
  Library out;
  for (const char* worker : {"tokenize", "generate", "detokenize", "talk", "vocode"}) out.workers[worker] = {};
  return out;
}

}  // namespace millrace::testing
