#include "stages/generating/score_head.h"

#include <cstring>

#include "formats/tensor_names.h"
#include "formats/weights.h"
#include "kernels/half.h"

namespace millrace {

Result<std::vector<float>> read_score_head(const std::string& model_dir, int64_t hidden_size) {
  ASSIGN_OR_RETURN(WeightStore store, WeightStore::open(model_dir));
  ASSIGN_OR_RETURN(const TensorView head, store.get(kScoreHeadName, Shape{1, hidden_size}));
  std::vector<float> out(static_cast<std::size_t>(hidden_size));
  if (head.dtype == DType::kF32) {
    std::memcpy(out.data(), head.data, out.size() * sizeof(float));
    return out;
  }
  if (head.dtype != DType::kBF16 && head.dtype != DType::kF16) {
    return error(StatusCode::kUnsupported, "score.weight is {}; wanted F32, F16 or BF16", dtype_name(head.dtype));
  }
  const auto* halves = static_cast<const uint16_t*>(head.data);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = head.dtype == DType::kBF16 ? kernels::bf16_to_f32(halves[i]) : kernels::f16_to_f32(halves[i]);
  }
  return out;
}

}  // namespace millrace
