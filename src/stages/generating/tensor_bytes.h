// The bytes of a tensor of a serving model as they came, from the form in which it serves: floats that were only laid
// out anew are the same values. Thread safety: free function.
#pragma once

#include "models/weight_table.h"

namespace millrace {

// kUnsupported: it serves quantized, and the values are lost. kInternal: the bytes have another checksum than they had.
Result<Buffer> tensor_bytes(const WeightTable::Entry& entry);

}  // namespace millrace
