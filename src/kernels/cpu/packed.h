// Packing quantized weights into panels (panel_table.h) and reading rows back out of them.
// Thread safety: free functions; pack_panels drives the pool and so runs one at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "kernels/cpu/panel_table.h"
#include "kernels/weight.h"

namespace millrace::kernels {

PanelKind panel_kind(DType type);  // of a quantized type (CHECK)

// Bytes of one panel of rows with `columns` elements, a multiple of 64.
int64_t panel_bytes(DType type, int64_t columns);

// A weight in panels whose bytes are not written yet: they go to `to`. kInvalidArgument where a row is not a whole
// number of blocks.
Result<Weight> empty_panels(DType dtype, const Shape& shape, std::span<std::byte>& to);

// The blocks of `source` [rows, columns] as panels; with `quantize`, those of its floats, which check_quantizable() has
// allowed. kInvalidArgument as empty_panels. Allocates the panels, and to quantize the blocks of one panel for each
// thread.
Result<Weight> pack_panels(const TensorView& source, ThreadPool& pool, std::optional<DType> quantize = {},
                           const RowsDone& rows_done = {});

// Row `row` of a packed weight as floats: the bits of dequantize_row on the blocks it was packed from.
void unpack_panel_row(const Weight& weight, int64_t row, float* to);

}  // namespace millrace::kernels
