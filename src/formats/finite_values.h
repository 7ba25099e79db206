// Looks for values that are not finite in a tensor as its file stores it. Thread safety: pure function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/safetensors.h"

namespace millrace {

// The index of the first element that is NaN or infinite; -1: there is none. It looks at the exponent bits alone: no
// rounding, any floating-point dtype. Of a quantized tensor it looks at the scales, and the index is that of their
// block's first element; of a transposed one at columns, one after another. `data`: where the header's data begins.
int64_t first_not_finite(const std::byte* data, const SafetensorsEntry& entry);

}  // namespace millrace
