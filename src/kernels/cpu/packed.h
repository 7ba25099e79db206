// Packing quantized weights into panels (panel_table.h) and reading rows back out of them.
// Thread safety: free functions; pack_panels drives the pool and so runs one at a time.
#pragma once

#include <optional>

#include "kernels/cpu/panel_table.h"
#include "kernels/weight.h"

namespace millrace::kernels {

PanelKind panel_kind(DType type);  // of a quantized type (CHECK)

// Bytes of one panel of rows with `columns` elements, a multiple of 64.
int64_t panel_bytes(DType type, int64_t columns);

// The blocks of `source` [rows, columns] as panels; with `quantize`, those of its floats, which check_quantizable() has
// allowed. kInvalidArgument where a row is not a whole number of blocks. Allocates the panels, and to quantize the
// blocks of one panel for each thread.
Result<Weight> pack_panels(const TensorView& source, ThreadPool& pool, std::optional<DType> quantize = {});

// Row `row` of a packed weight as floats: the bits of dequantize_row on the blocks it was packed from.
void unpack_panel_row(const Weight& weight, int64_t row, float* to);

}  // namespace millrace::kernels
