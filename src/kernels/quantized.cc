#include "kernels/quantized.h"

namespace millrace::kernels {

Result<Buffer> quantize(const TensorView& from, DType type, ThreadPool& pool) {
  (void)pool;
  return error(StatusCode::kUnsupported, "quantizing {} to {}; wanted no quantization", dtype_name(from.dtype),
               dtype_name(type));
}

}  // namespace millrace::kernels
