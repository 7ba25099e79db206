#include "models/omni/code2wav.h"

#include <algorithm>

#include "base/trace.h"
#include "formats/tensor_names.h"
#include "kernels/half.h"

namespace millrace {
namespace {

using kernels::Rows;

constexpr int64_t kConvTaps = 7;
constexpr int64_t kDilations[] = {1, 3, 9};
constexpr float kNormEpsilon = 1e-6f;
constexpr int64_t kWidening = 4;  // of a ConvNeXt block

TensorView table_view(const std::vector<float>& values, const Shape& shape) {
  return {.data = values.data(), .dtype = DType::kF32, .shape = shape, .device = Device::kHost};
}

Status given_up() { return Status(StatusCode::kCancelled, "the decoding was given up"); }

}  // namespace

// A few frames of one sound on their way through the layers, which take the histories in their sequence.
class Code2Wav::Run {
 public:
  Run(VocoderState& state, kernels::Ops& ops, TimeRows x) : state_(state), ops_(ops), x_(std::move(x)) {}

  TimeRows& rows() { return x_; }

  void upsample(const Upsampling& layer) {
    x_ = layer.transposed.run(x_, nullptr, next(), ops_);
    RowHistory& history = next();
    TimeRows all = history.extended(x_.rows);
    std::copy_n(x_.view().data, x_.rows * x_.width, all.view().slice(history.count(), x_.rows).data);
    TimeRows inner(x_.rows, x_.width), wide(x_.rows, kWidening * x_.width);
    ops_.depthwise(all.view(), table_view(layer.depthwise, {kConvTaps, x_.width}), layer.depthwise_bias, inner.view());
    history.keep_last(all);
    ops_.layer_norm(inner.view(), layer.norm, layer.norm_bias, kNormEpsilon, inner.view());
    layer.wide(ops_, inner.view(), wide.view());
    ops_.gelu(wide.view(), false, wide.view());
    layer.narrow(ops_, wide.view(), inner.view());
    ops_.add_scaled(inner.view(), layer.gamma, x_.view());
  }
  void convolve(const CausalConv& layer, const Snake* before) { x_ = layer.run(x_, before, next(), ops_); }
  void transpose(const Block& block) { x_ = block.transposed.run(x_, &block.before, next(), ops_); }
  void add(const Unit& unit) {
    TimeRows inner = unit.dilated.run(x_, &unit.before, next(), ops_);
    unit.between(ops_, inner.view(), inner.view());
    unit.pointwise.add_to(inner.view(), x_.view(), ops_);
  }

 private:
  RowHistory& next() { return state_.histories_[next_++]; }

  VocoderState& state_;
  kernels::Ops& ops_;
  TimeRows x_;
  std::size_t next_ = 0;
};

Code2Wav::Code2Wav(const Code2WavConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader,
                   const LoadOptions& options)
    : config_(config), weights_(std::move(weights)), transformer_(config, reader) {
  const std::string name = std::string(kCode2WavPrefix) + "decoder.";
  for (std::size_t i = 0; i < config.upsampling_ratios.size(); ++i) {
    upsamplings_.push_back(read_upsampling(reader, i, options));
  }
  first_ = CausalConv(reader, name + "0.conv", config.hidden_size, config.decoder_dim, kConvTaps, 1, options);
  const std::size_t blocks = config.upsample_rates.size();
  for (std::size_t i = 0; i < blocks; ++i) blocks_.push_back(read_block(reader, i, options));
  const int64_t channels = config.decoder_dim >> blocks;
  before_last_ = Snake(reader, fmt::format("{}{}", name, blocks + 1), channels);
  last_ = CausalConv(reader, fmt::format("{}{}.conv", name, blocks + 2), channels, 1, kConvTaps, 1, options);
}

Code2Wav::Upsampling Code2Wav::read_upsampling(WeightReader& reader, std::size_t index,
                                               const LoadOptions& options) const {
  const std::string name = fmt::format("{}upsample.{}.", kCode2WavPrefix, index), next = name + "1.";
  const int64_t hidden = config_.hidden_size;
  Upsampling out;
  out.transposed =
      TransposedConv(reader, name + "0.conv", hidden, hidden, config_.upsampling_ratios[index], 1, options);
  const TensorView depthwise = reader.tensor(next + "dwconv.conv.weight", {hidden, 1, kConvTaps});
  if (depthwise.data != nullptr) {
    const std::vector<float> stored = kernels::widened_values(depthwise);
    for (int64_t tap = 0; tap < kConvTaps; ++tap) {
      for (int64_t i = 0; i < hidden; ++i) {
        out.depthwise.push_back(stored[static_cast<std::size_t>(i * kConvTaps + tap)]);
      }
    }
  }
  out.depthwise_bias = reader.tensor(next + "dwconv.conv.bias", {hidden});
  out.norm = reader.tensor(next + "norm.weight", {hidden});
  out.norm_bias = reader.tensor(next + "norm.bias", {hidden});
  out.wide = reader.linear(next + "pwconv1", kWidening * hidden, hidden, true);
  out.narrow = reader.linear(next + "pwconv2", hidden, kWidening * hidden, true);
  out.gamma = reader.tensor(next + "gamma", {hidden});
  return out;
}

Code2Wav::Block Code2Wav::read_block(WeightReader& reader, std::size_t index, const LoadOptions& options) const {
  const std::string name = fmt::format("{}decoder.{}.block.", kCode2WavPrefix, index + 1);
  const int64_t inputs = config_.decoder_dim >> index, outputs = inputs / 2;
  Block out;
  out.before = Snake(reader, name + "0", inputs);
  out.transposed = TransposedConv(reader, name + "1.conv", inputs, outputs, config_.upsample_rates[index], 2, options);
  for (std::size_t i = 0; i < std::size(kDilations); ++i) {
    const std::string unit = fmt::format("{}{}.", name, i + 2);
    out.units.push_back(
        {.before = Snake(reader, unit + "act1", outputs),
         .between = Snake(reader, unit + "act2", outputs),
         .dilated = CausalConv(reader, unit + "conv1.conv", outputs, outputs, kConvTaps, kDilations[i], options),
         .pointwise = CausalConv(reader, unit + "conv2.conv", outputs, outputs, 1, 1, options)});
  }
  return out;
}

Status Code2Wav::packing_status() const {
  for (const Upsampling& layer : upsamplings_) RETURN_IF_ERROR(layer.transposed.status());
  for (const Block& block : blocks_) {
    RETURN_IF_ERROR(block.transposed.status());
    for (const Unit& unit : block.units) {
      RETURN_IF_ERROR(unit.dilated.status());
      RETURN_IF_ERROR(unit.pointwise.status());
    }
  }
  RETURN_IF_ERROR(first_.status());
  return last_.status();
}

Result<std::shared_ptr<const Code2Wav>> Code2Wav::load(const Code2WavConfig& config, std::shared_ptr<WeightStore> store,
                                                       const LoadOptions& options) {
  if (config.head_dim > kernels::kMaxHeadDim) {
    return error(StatusCode::kUnsupported, "code2wav_config: head_dim is {}; wanted at most {}", config.head_dim,
                 kernels::kMaxHeadDim);
  }
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(store, options, *weights);
  std::shared_ptr<const Code2Wav> vocoder(new Code2Wav(config, weights, reader, options));
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(vocoder->packing_status());
  std::vector<std::string_view> ignore;
  const std::vector<std::string> left = store->unexpected({});
  for (const std::string& name : left) {
    if (!name.starts_with(kCode2WavPrefix)) ignore.push_back(name);
  }
  RETURN_IF_ERROR(store->check_all_taken(ignore));
  return vocoder;
}

std::unique_ptr<VocoderState> Code2Wav::start() const {
  std::unique_ptr<VocoderState> out(new VocoderState(config_));
  std::vector<RowHistory>& histories = out->histories_;
  for (const Upsampling& layer : upsamplings_) {
    histories.push_back(layer.transposed.history());
    histories.emplace_back(kConvTaps - 1, kConvTaps - 1, config_.hidden_size);
  }
  histories.push_back(first_.history());
  for (const Block& block : blocks_) {
    histories.push_back(block.transposed.history());
    for (const Unit& unit : block.units) histories.push_back(unit.dilated.history());
  }
  histories.push_back(last_.history());
  return out;
}

Status Code2Wav::decode(std::span<const int32_t> codes, VocoderState& state, kernels::Ops& ops,
                        FunctionRef<bool()> keep_going, std::vector<float>& samples) const {
  const auto quantizers = static_cast<std::size_t>(config_.quantizers);
  CHECK(codes.size() % quantizers == 0);
  trace::Span span("decode", "vocoder");
  span.note("frames", static_cast<int64_t>(codes.size() / quantizers));
  for (std::size_t first = 0; first < codes.size();) {
    const std::size_t n = std::min(codes.size() - first, quantizers * std::size_t{kVocoderFramesAtOnce});
    if (!keep_going()) return given_up();
    Run run(state, ops, transformer_.run(codes.subspan(first, n), state.transformer_, ops));
    for (const Upsampling& layer : upsamplings_) run.upsample(layer);
    run.convolve(first_, nullptr);
    for (const Block& block : blocks_) {
      if (!keep_going()) return given_up();
      run.transpose(block);
      for (const Unit& unit : block.units) {
        if (!keep_going()) return given_up();
        run.add(unit);
      }
    }
    run.convolve(last_, &before_last_);
    const Rows out = run.rows().view();
    for (int64_t i = 0; i < out.count; ++i) samples.push_back(std::clamp(out.data[i], -1.0f, 1.0f));
    first += n;
    state.frames_ += static_cast<int64_t>(n / quantizers);
  }
  return ok_status();
}

}  // namespace millrace
