#include "models/vision/vision_tower.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/trace.h"
#include "formats/tensor_names.h"
#include "kernels/half.h"
#include "kernels/rope_table.h"
#include "models/vision/vision_positions.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr float kEpsilon = 1e-6f;
constexpr double kRopeTheta = 10000.0;
constexpr int64_t kPageSize = 64;  // slots of the pages that attention reads; any size gives the same bits

// head_dim / 4 frequencies turn by the row, as many more by the column.
std::vector<float> inverse_frequencies(int head_dim) {
  const int quarter = head_dim / 4;
  std::vector<float> out;
  for (int axis = 0; axis < 2; ++axis) {
    for (int i = 0; i < quarter; ++i) {
      const auto exponent = static_cast<float>(2 * i) / static_cast<float>(2 * quarter);
      out.push_back(1.0f / static_cast<float>(std::pow(kRopeTheta, static_cast<double>(exponent))));
    }
  }
  return out;
}

struct MergerTensors {
  const char *norm, *fc1, *fc2, *list;
};
MergerTensors merger_tensors(MergerNames names) {
  if (names == MergerNames::kQwen3Omni) return {"ln_q", "mlp.0", "mlp.2", "merger_list"};
  return {"norm", "linear_fc1", "linear_fc2", "deepstack_merger_list"};
}

Status cancelled() { return Status(StatusCode::kCancelled, "the encoding was given up"); }

}  // namespace

// One picture on its way through the tower: its activations and the keys and values of one layer.
class VisionTower::Run {
 public:
  Run(const VisionTower& tower, VisionGrid grid, kernels::Ops& ops, FunctionRef<bool()> keep_going)
      : tower_(tower),
        config_(tower.config_),
        grid_(grid),
        ops_(ops),
        keep_going_(keep_going),
        count_(grid.patches()),
        x_(float_buffer(count_, config_.hidden_size)),
        normed_(float_buffer(kVisionTileRows, config_.hidden_size)),
        qkv_(float_buffer(count_, 3 * config_.hidden_size)),
        attended_(float_buffer(kVisionTileRows, config_.hidden_size)),
        inner_(float_buffer(kVisionTileRows, std::max<int64_t>(config_.intermediate_size, joined_size()))),
        joined_(float_buffer(kVisionTileRows, joined_size())),
        cos_(float_buffer(count_, config_.head_dim() / 2)),
        sin_(float_buffer(count_, config_.head_dim() / 2)) {
    const int64_t frame = int64_t{grid_.height} * grid_.width;
    pages_.resize(static_cast<std::size_t>((frame + kPageSize - 1) / kPageSize));
    std::iota(pages_.begin(), pages_.end(), 0);
    kv_ = {.dtype = DType::kF32,
           .page_count = static_cast<int64_t>(pages_.size()),
           .page_size = kPageSize,
           .kv_heads = config_.heads,
           .head_dim = config_.head_dim()};
    kv_.page_stride_bytes = kv_.page_bytes();
    const auto bytes = static_cast<std::size_t>(kv_.page_count * kv_.page_bytes());
    k_ = Buffer(bytes);
    v_ = Buffer(bytes);
    kv_.k = k_.data();
    kv_.v = v_.data();
  }

  // x = the embedded patches, and the table of their rotations.
  Status embed(ConstRows patches) {
    for (int64_t r = 0; r < count_; r += kVisionTileRows) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kVisionTileRows, count_ - r);
      tower_.patch_embed_(ops_, patches.slice(r, n), x().slice(r, n));
    }
    const auto positions = patch_positions(grid_.height, grid_.width, config_.merge_size);
    std::vector<std::array<float, 3>> turns;
    for (int32_t frame = 0; frame < grid_.frames; ++frame) {
      const auto first = static_cast<int64_t>(turns.size());
      add_interpolated_positions(tower_.positions_, config_.position_edge, grid_.height, grid_.width, positions,
                                 x().slice(first, static_cast<int64_t>(positions.size())));
      for (const auto& [row, column] : positions) {
        turns.push_back({0, static_cast<float>(row), static_cast<float>(column)});
      }
    }
    const int quarter = config_.head_dim() / 4;
    std::vector<uint8_t> axes(static_cast<std::size_t>(quarter), 1);
    axes.insert(axes.end(), axes.size(), 2);
    kernels::fill_rope_table(turns, axes, inverse_frequencies(config_.head_dim()), 1.0f, cos(), sin());
    return ok_status();
  }

  Status block(const Block& block) {
    RETURN_IF_ERROR(attend(block));
    for (int64_t r = 0; r < count_; r += kVisionTileRows) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kVisionTileRows, count_ - r);
      const Rows normed = tile(normed_, n, config_.hidden_size), inner = tile(inner_, n, config_.intermediate_size);
      ops_.layer_norm(as_const(x().slice(r, n)), block.norm2.weight, block.norm2.bias, kEpsilon, normed);
      block.fc1(ops_, normed, inner);
      ops_.gelu(as_const(inner), config_.activation == VisionActivation::kGeluTanh, inner);
      block.fc2.add_to(ops_, inner, x().slice(r, n));
    }
    return ok_status();
  }

  // `out`: [rows, out_hidden_size].
  Status merge(const Merger& merger, float* out) {
    const int64_t joined = config_.merged_patches(), rows = count_ / joined;
    for (int64_t r = 0; r < rows; r += kVisionTileRows / joined) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kVisionTileRows / joined, rows - r);
      const Rows from = x().slice(r * joined, n * joined);
      const Rows wide = tile(joined_, n, joined_size()), inner = tile(inner_, n, joined_size());
      const Rows patches(wide.data, n * joined, config_.hidden_size);  // the same memory, before they are joined
      if (merger.norm_before) {
        ops_.layer_norm(as_const(from), merger.norm.weight, merger.norm.bias, kEpsilon, patches);
      } else {
        std::copy_n(from.data, from.count * from.width, wide.data);
        ops_.layer_norm(as_const(wide), merger.norm.weight, merger.norm.bias, kEpsilon, wide);
      }
      merger.fc1(ops_, wide, inner);
      ops_.gelu(as_const(inner), false, inner);
      merger.fc2(ops_, inner, Rows(out + r * config_.out_hidden_size, n, config_.out_hidden_size));
    }
    return ok_status();
  }

 private:
  static ConstRows as_const(Rows rows) { return {rows.data, rows.count, rows.width, rows.stride}; }
  static Rows tile(Buffer& buffer, int64_t rows, int64_t width) { return {buffer.as<float>().data(), rows, width}; }
  Rows x() { return tile(x_, count_, config_.hidden_size); }
  Rows qkv() { return tile(qkv_, count_, 3 * config_.hidden_size); }
  Rows cos() { return tile(cos_, count_, config_.head_dim() / 2); }
  Rows sin() { return tile(sin_, count_, config_.head_dim() / 2); }
  int64_t joined_size() const { return int64_t{config_.hidden_size} * config_.merged_patches(); }

  Status attend(const Block& block) {
    const int64_t hidden = config_.hidden_size;
    for (int64_t r = 0; r < count_; r += kVisionTileRows) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kVisionTileRows, count_ - r);
      const Rows normed = tile(normed_, n, hidden), rows = qkv().slice(r, n);
      ops_.layer_norm(as_const(x().slice(r, n)), block.norm1.weight, block.norm1.bias, kEpsilon, normed);
      block.qkv(ops_, normed, rows);
      for (const int64_t part : {int64_t{0}, hidden}) {
        ops_.rope(rows.columns(part, hidden), config_.head_dim(), as_const(cos().slice(r, n)),
                  as_const(sin().slice(r, n)));
      }
    }
    const int64_t frame = int64_t{grid_.height} * grid_.width;
    for (int64_t first = 0; first < count_; first += frame) RETURN_IF_ERROR(attend_frame(block, first, frame));
    return ok_status();
  }

  // The keys and values of the frame go to the pages once; then tiles of its rows see all of them.
  Status attend_frame(const Block& block, int64_t first, int64_t frame) {
    const int64_t hidden = config_.hidden_size;
    const Rows rows = qkv().slice(first, frame);
    const kernels::AttentionSequence stored{0, frame, 0, pages_};
    ops_.kv_store(kv_, {&stored, 1}, as_const(rows.columns(hidden, hidden)),
                  as_const(rows.columns(2 * hidden, hidden)));
    const kernels::AttentionParams params{
        .heads = config_.heads, .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim())), .causal = false};
    for (int64_t r = 0; r < frame; r += kVisionTileRows) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kVisionTileRows, frame - r);
      const kernels::AttentionSequence seen{0, n, frame - n, pages_};
      const Rows attended = tile(attended_, n, hidden);
      ops_.attention(as_const(rows.slice(r, n).columns(0, hidden)), kv_, {&seen, 1}, params, attended);
      block.proj.add_to(ops_, attended, x().slice(first + r, n));
    }
    return ok_status();
  }

  const VisionTower& tower_;
  const VisionConfig& config_;
  const VisionGrid grid_;
  kernels::Ops& ops_;
  const FunctionRef<bool()> keep_going_;
  const int64_t count_;
  Buffer x_, normed_, qkv_, attended_, inner_, joined_, cos_, sin_, k_, v_;
  kernels::KvLayer kv_;
  std::vector<int32_t> pages_;
};

VisionTower::VisionTower(const VisionConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader)
    : config_(config), weights_(std::move(weights)) {
  const std::string name(kVisionPrefix);
  const MergerTensors names = merger_tensors(config.merger_names);
  patch_embed_ = {read_kernels(reader), reader.tensor(name + "patch_embed.proj.bias", {config.hidden_size})};
  const TensorView positions = reader.tensor(
      name + "pos_embed.weight", {int64_t{config.position_edge} * config.position_edge, config.hidden_size});
  if (positions.data != nullptr) positions_ = kernels::widened_values(positions);
  for (int i = 0; i < config.depth; ++i) blocks_.push_back(read_block(reader, i));
  merger_ = read_merger(reader, name + "merger.", true);
  for (std::size_t i = 0; i < config.deepstack.size(); ++i) {
    deepstack_.push_back(read_merger(reader, fmt::format("{}{}.{}.", name, names.list, i), false));
  }
}

// A convolution whose stride is its kernel is a product.
TensorView VisionTower::read_kernels(WeightReader& reader) {
  const int64_t edge = config_.patch_size, frames = config_.temporal_patch_size;
  const std::string name = fmt::format("{}patch_embed.", kVisionPrefix);
  const Shape matrix = {config_.hidden_size, config_.patch_values()};
  if (!config_.kernels_by_frame) {
    TensorView kernels =
        reader.tensor(name + "proj.weight", {config_.hidden_size, config_.channels, frames, edge, edge});
    kernels.shape = matrix;
    return kernels;
  }
  kernels_.resize(static_cast<std::size_t>(config_.hidden_size) * static_cast<std::size_t>(config_.patch_values()));
  const int64_t planes = int64_t{config_.hidden_size} * config_.channels, plane = edge * edge;
  for (int64_t frame = 0; frame < frames; ++frame) {
    const TensorView one = reader.tensor(fmt::format("{}frames.{}.weight", name, frame),
                                         {config_.hidden_size, config_.channels, edge, edge});
    if (one.data == nullptr) return {};
    const std::vector<float> values = kernels::widened_values(one);
    for (int64_t i = 0; i < planes; ++i) {
      std::copy_n(values.begin() + i * plane, plane, kernels_.begin() + (i * frames + frame) * plane);
    }
  }
  return {.data = kernels_.data(), .dtype = DType::kF32, .shape = matrix, .device = Device::kHost};
}

VisionTower::Norm VisionTower::read_norm(WeightReader& reader, const std::string& name, int64_t width) const {
  return {reader.tensor(name + ".weight", {width}), reader.tensor(name + ".bias", {width})};
}

VisionTower::Block VisionTower::read_block(WeightReader& reader, int index) const {
  const std::string name = fmt::format("{}blocks.{}.", kVisionPrefix, index);
  const int64_t hidden = config_.hidden_size;
  return {.norm1 = read_norm(reader, name + "norm1", hidden),
          .norm2 = read_norm(reader, name + "norm2", hidden),
          .qkv = reader.linear(name + "attn.qkv", 3 * hidden, hidden, true),
          .proj = reader.linear(name + "attn.proj", hidden, hidden, true),
          .fc1 = reader.linear(name + "mlp.linear_fc1", config_.intermediate_size, hidden, true),
          .fc2 = reader.linear(name + "mlp.linear_fc2", hidden, config_.intermediate_size, true)};
}

VisionTower::Merger VisionTower::read_merger(WeightReader& reader, const std::string& name, bool norm_before) const {
  const int64_t joined = int64_t{config_.hidden_size} * config_.merged_patches();
  const MergerTensors names = merger_tensors(config_.merger_names);
  return {.norm = read_norm(reader, name + names.norm, norm_before ? config_.hidden_size : joined),
          .fc1 = reader.linear(name + names.fc1, joined, joined, true),
          .fc2 = reader.linear(name + names.fc2, config_.out_hidden_size, joined, true),
          .norm_before = norm_before};
}

Result<std::shared_ptr<const VisionTower>> VisionTower::load(const VisionConfig& config,
                                                             std::shared_ptr<WeightStore> store,
                                                             const LoadOptions& options) {
  if (config.head_dim() > kernels::kMaxHeadDim) {
    return error(StatusCode::kUnsupported, "vision_config: head_dim is {}; wanted at most {}", config.head_dim(),
                 kernels::kMaxHeadDim);
  }
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(store, options, *weights);
  std::shared_ptr<const VisionTower> tower(new VisionTower(config, weights, reader));
  RETURN_IF_ERROR(reader.status());
  std::vector<std::string_view> ignore;
  const std::vector<std::string> left = store->unexpected({});
  for (const std::string& name : left) {
    if (!name.starts_with(kVisionPrefix)) ignore.push_back(name);
  }
  RETURN_IF_ERROR(store->check_all_taken(ignore));
  return tower;
}

Status VisionTower::encode(VisionGrid grid, ConstRows patches, kernels::Ops& ops, FunctionRef<bool()> keep_going,
                           std::vector<float>& features) const {
  CHECK(grid.frames >= 1 && grid.height >= 1 && grid.width >= 1);
  CHECK(grid.height % config_.merge_size == 0 && grid.width % config_.merge_size == 0);
  CHECK(patches.count == grid.patches() && patches.width == config_.patch_values());
  trace::Span span("encode", "vision");
  span.note("patches", grid.patches());
  const int64_t set = grid.patches() / config_.merged_patches() * config_.out_hidden_size;
  features.resize(static_cast<std::size_t>(set * config_.feature_sets()));
  Run run(*this, grid, ops, keep_going);
  RETURN_IF_ERROR(run.embed(patches));
  std::size_t next = 0;
  for (int i = 0; i < config_.depth; ++i) {
    RETURN_IF_ERROR(run.block(blocks_[static_cast<std::size_t>(i)]));
    if (next == deepstack_.size() || config_.deepstack[next] != i) continue;
    RETURN_IF_ERROR(run.merge(deepstack_[next], features.data() + set * static_cast<int64_t>(next + 1)));
    ++next;
  }
  return run.merge(merger_, features.data());
}

}  // namespace millrace
