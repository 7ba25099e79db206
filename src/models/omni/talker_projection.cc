#include "models/omni/talker_projection.h"

#include <algorithm>

#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::Rows;

constexpr int64_t kTileRows = 256;  // of a product at one go

}  // namespace

Result<std::shared_ptr<const TalkerProjection>> TalkerProjection::load(Kind kind, const TalkerConfig& config,
                                                                       std::shared_ptr<WeightStore> store,
                                                                       const LoadOptions& options) {
  const std::string name = kind == Kind::kText ? "talker.text_projection." : "talker.hidden_projection.";
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(std::move(store), options, *weights);
  const int64_t inner = config.text.intermediate_size;
  Linear fc1 = reader.linear(name + "linear_fc1", inner, config.thinker_hidden_size, true);
  Linear fc2 = reader.linear(name + "linear_fc2", config.text.hidden_size, inner, true);
  RETURN_IF_ERROR(reader.status());
  return std::shared_ptr<const TalkerProjection>(new TalkerProjection(weights, std::move(fc1), std::move(fc2)));
}

void TalkerProjection::project(kernels::ConstRows x, kernels::Ops& ops, Rows rows) const {
  CHECK(x.count == rows.count);
  const int64_t width = fc1_.weight.rows(), most = std::min(kTileRows, x.count);
  Buffer inner = float_buffer(most, width), ones = float_buffer(most, width);
  std::fill_n(ones.as<float>().data(), most * width, 1.0f);
  for (int64_t first = 0; first < x.count; first += kTileRows) {
    const int64_t n = std::min(kTileRows, x.count - first);
    const Rows gate(inner.as<float>().data(), n, width);
    fc1_(ops, x.slice(first, n), gate);
    fc2_(ops, kernels::gated(gate, Rows(ones.as<float>().data(), n, width)), rows.slice(first, n));  // silu(gate) * 1
  }
}

}  // namespace millrace
