// Reconstructs a tensor's original bytes from its packed form. Packing floats changes their layout, not their values.
// Thread safety: free function.
#pragma once

#include "models/weight_table.h"

namespace millrace {

// kUnsupported: it serves quantized, and the values are lost. kInternal: the bytes have another checksum than they had.
Result<Buffer> tensor_bytes(const WeightTable::Entry& entry);

}  // namespace millrace
