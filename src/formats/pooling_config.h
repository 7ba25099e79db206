// How a directory in the form of sentence-transformers makes one embedding of the rows of a text: modules.json names
// its parts, 1_Pooling/config.json which rows count. A directory without modules.json is a language model like any
// other, whose embedding is the row of the last token.
//
// Thread safety: a free function.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

struct PoolingConfig {
  bool mean = false;       // of all rows; false: the last token's row
  bool normalizes = true;  // to length 1
  bool given = false;      // by modules.json; else these are defaults
};

// kUnsupported where it is made otherwise (the first token's row, a dense layer behind), with the value seen and those
// wanted; kInvalidArgument for files that cannot be read.
Result<PoolingConfig> read_pooling_config(const std::string& model_dir);

}  // namespace millrace
