// ModelSummary: what lists of models show of the files that are served. Read once, from headers alone: no weight is
// looked at.
//
// Thread safety: a value, and a free function.
#pragma once

#include <cstdint>
#include <string>

namespace millrace::api {

struct ModelSummary {
  std::string format;        // "gguf" or "safetensors"; "": the files are not on this host
  std::string quantization;  // the type of most bytes, "BF16"; "": as above
  int64_t parameters = 0;    // as the config describes the model; with towers, of all tensors
  uint64_t bytes = 0;        // of all tensors
  int64_t modified = 0;      // Unix seconds, of the newest file
  std::string digest;        // 64 hex digits: of the names, sizes and times of the files, which is not of their bytes
};

// 64 hex digits.
std::string sha256_of(const std::string& text);

// `path`: a model's directory or GGUF file. What cannot be read is left as it is.
ModelSummary summarize_model(const std::string& path);

}  // namespace millrace::api
