// The checksum of a model's small files, its configuration and tokenizer, so that two processes that read a folder at
// different times can be compared. Of a GGUF file, all that stands before its tensors.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace millrace {

// Never 0. An absent file counts as absent. Errors: those of reading the files.
Result<uint64_t> text_checksum(const std::string& model);

}  // namespace millrace
