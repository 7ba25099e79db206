// How a directory in the form of sentence-transformers makes one embedding of the rows of a text: modules.json names
// its parts, 1_Pooling/config.json which rows count. A directory without modules.json is a language model like any
// other, whose embedding is the row of the last token.
//
// Thread safety: a free function.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace {

// OK: the row of the last token is its embedding. kUnsupported where it is made otherwise (the mean of all rows, a
// dense layer behind), with the value seen and the one wanted; kInvalidArgument for files that cannot be read.
Status check_last_token_pooling(const std::string& model_dir);

}  // namespace millrace
