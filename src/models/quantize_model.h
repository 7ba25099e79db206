// A model written as one GGUF file, its weights in the type asked for. Thread safety: one thread.
#pragma once

#include <string>

#include "base/status.h"
#include "models/write_progress.h"

namespace millrace {

struct QuantizeOptions {
  std::string input;   // a Hugging Face directory or a GGUF file
  std::string output;  // a .gguf file
  std::string type = "q8_0";
  bool overwrite = false;
};

// Matrices become the type asked for, except that of q4_0 embedding and head become q8_0, and that rows
// which are not whole blocks become f16; vectors and routers become f32. Memory: a few rows beside the mapped input.
//
// `progress` counts the bytes that were read. After an error there is no file.
Status quantize_model(const QuantizeOptions& options, const WriteProgress& progress);

}  // namespace millrace
