#include "models/omni/audio_tower.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/trace.h"
#include "formats/tensor_names.h"
#include "tensor/float_buffer.h"

namespace millrace {
namespace {

using kernels::ConstRows;
using kernels::Rows;

constexpr float kEpsilon = 1e-5f;
constexpr double kMaxTimescale = 10000.0;
constexpr int64_t kPageSize = 64;      // slots of the pages that attention reads; any size gives the same bits
constexpr int64_t kChunksAtOnce = 16;  // whose rows are one product of conv_out

// [kAudioChunkRows, width]: sines, then cosines, in the f32 steps of transformers' SinusoidsPositionEmbedding.
std::vector<float> sinusoids(int64_t width) {
  const int64_t half = width / 2;
  const auto increment = static_cast<float>(std::log(kMaxTimescale) / static_cast<double>(half - 1));
  std::vector<float> out;
  for (int64_t row = 0; row < kAudioChunkRows; ++row) {
    for (int64_t i = 0; i < 2 * half; ++i) {
      const float inverse = std::exp(-increment * static_cast<float>(i % half));
      const float time = static_cast<float>(row) * inverse;
      out.push_back(i < half ? std::sin(time) : std::cos(time));
    }
  }
  return out;
}

Status cancelled() { return Status(StatusCode::kCancelled, "the encoding was given up"); }

}  // namespace

// One sound on its way through the tower: its activations and the keys and values of one window.
class AudioTower::Run {
 public:
  Run(const AudioTower& tower, int64_t frames, kernels::Ops& ops, FunctionRef<bool()> keep_going)
      : tower_(tower),
        config_(tower.config_),
        frames_(frames),
        ops_(ops),
        keep_going_(keep_going),
        count_(audio_rows(frames)),
        window_(std::min(count_, audio_rows(longest_chunk()) * config_.window_chunks())),
        x_(float_buffer(count_, config_.d_model)),
        qkv_(float_buffer(count_, 3 * int64_t{config_.d_model})),
        normed_(float_buffer(kAudioTileRows, config_.d_model)),
        attended_(float_buffer(kAudioTileRows, config_.d_model)),
        inner_(float_buffer(kAudioTileRows, std::max(config_.ffn, config_.d_model))) {
    pages_.resize(static_cast<std::size_t>((window_ + kPageSize - 1) / kPageSize));
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

  // x = the convolved chunks and their positions.
  Status embed(ConstRows mel) {
    AudioStem::Workspace workspace(tower_.stem_);
    Buffer wide = float_buffer(kChunksAtOnce * kAudioChunkRows, tower_.stem_.row_width());
    for (int64_t first = 0, done = 0; first < frames_;) {
      int64_t rows = 0;
      for (int64_t i = 0; i < kChunksAtOnce && first < frames_; ++i, first += kAudioChunkFrames) {
        if (!keep_going_()) return cancelled();
        const int64_t n = std::min(kAudioChunkFrames, frames_ - first), of_chunk = audio_rows(n);
        const Rows stacked = tile(wide, rows + of_chunk, tower_.stem_.row_width()).slice(rows, of_chunk);
        tower_.stem_.convolve(mel.slice(first, n), longest_chunk(), ops_, workspace, stacked);
        rows += of_chunk;
      }
      if (!keep_going_()) return cancelled();
      const Rows x = this->x().slice(done, rows);
      tower_.conv_out_(ops_, tile(wide, rows, tower_.stem_.row_width()), x);
      for (int64_t row = 0; row < rows; ++row) add_position(row % kAudioChunkRows, x.row(row));
      done += rows;
    }
    return ok_status();
  }

  Status layer(const Layer& layer) {
    RETURN_IF_ERROR(attend(layer));
    for (int64_t r = 0; r < count_; r += kAudioTileRows) {
      if (!keep_going_()) return cancelled();
      const Rows x = this->x().slice(r, std::min(kAudioTileRows, count_ - r));
      const Rows normed = tile(normed_, x.count, config_.d_model), inner = tile(inner_, x.count, config_.ffn);
      ops_.layer_norm(x, layer.norm.weight, layer.norm.bias, kEpsilon, normed);
      layer.fc1(ops_, normed, inner);
      activate(inner);
      layer.fc2.add_to(ops_, inner, x);
    }
    return ok_status();
  }

  // `out`: [rows, output_dim].
  Status project(float* out) {
    for (int64_t r = 0; r < count_; r += kAudioTileRows) {
      if (!keep_going_()) return cancelled();
      const Rows x = this->x().slice(r, std::min(kAudioTileRows, count_ - r));
      const Rows normed = tile(normed_, x.count, config_.d_model), inner = tile(inner_, x.count, config_.d_model);
      ops_.layer_norm(x, tower_.post_norm_.weight, tower_.post_norm_.bias, kEpsilon, normed);
      tower_.proj1_(ops_, normed, inner);
      activate(inner);
      tower_.proj2_(ops_, inner, Rows(out + r * config_.output_dim, x.count, config_.output_dim));
    }
    return ok_status();
  }

 private:
  static Rows tile(Buffer& buffer, int64_t rows, int64_t width) { return {buffer.as<float>().data(), rows, width}; }
  Rows x() { return tile(x_, count_, config_.d_model); }
  // Frames that every chunk is filled up to.
  int64_t longest_chunk() const { return std::min(frames_, kAudioChunkFrames); }
  void activate(Rows rows) { ops_.gelu(rows, config_.activation == AudioActivation::kGeluTanh, rows); }
  void add_position(int64_t row, float* x) {
    const float* position = tower_.positions_.data() + row * config_.d_model;
    for (int64_t i = 0; i < config_.d_model; ++i) x[i] += position[i];
  }

  Status attend(const Layer& layer) {
    const int64_t width = config_.d_model;
    for (int64_t r = 0; r < count_; r += kAudioTileRows) {
      if (!keep_going_()) return cancelled();
      const Rows x = this->x().slice(r, std::min(kAudioTileRows, count_ - r));
      const Rows normed = tile(normed_, x.count, width), rows = tile(qkv_, count_, 3 * width).slice(r, x.count);
      ops_.layer_norm(x, layer.attention_norm.weight, layer.attention_norm.bias, kEpsilon, normed);
      ops_.linear(normed, {layer.q.into(rows.columns(0, width)), layer.k.into(rows.columns(width, width)),
                           layer.v.into(rows.columns(2 * width, width))});
    }
    for (int64_t first = 0; first < count_; first += window_) {
      RETURN_IF_ERROR(attend_window(layer, first, std::min(window_, count_ - first)));
    }
    return ok_status();
  }

  // The keys and values of the window go to the pages once; then tiles of its rows see all of them.
  Status attend_window(const Layer& layer, int64_t first, int64_t size) {
    const int64_t width = config_.d_model;
    const Rows rows = tile(qkv_, count_, 3 * width).slice(first, size);
    const kernels::AttentionSequence stored{0, size, 0, pages_};
    ops_.kv_store(kv_, {&stored, 1}, rows.columns(width, width), rows.columns(2 * width, width));
    const kernels::AttentionParams params{
        .heads = config_.heads, .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim())), .causal = false};
    for (int64_t r = 0; r < size; r += kAudioTileRows) {
      if (!keep_going_()) return cancelled();
      const int64_t n = std::min(kAudioTileRows, size - r);
      const kernels::AttentionSequence seen{0, n, size - n, pages_};
      const Rows attended = tile(attended_, n, width);
      ops_.attention(rows.slice(r, n).columns(0, width), kv_, {&seen, 1}, params, attended);
      layer.out.add_to(ops_, attended, x().slice(first + r, n));
    }
    return ok_status();
  }

  const AudioTower& tower_;
  const AudioConfig& config_;
  const int64_t frames_;
  kernels::Ops& ops_;
  const FunctionRef<bool()> keep_going_;
  const int64_t count_, window_;  // rows
  Buffer x_, qkv_, normed_, attended_, inner_, k_, v_;
  kernels::KvLayer kv_;
  std::vector<int32_t> pages_;
};

AudioTower::AudioTower(const AudioConfig& config, std::shared_ptr<const WeightTable> weights, WeightReader& reader,
                       const LoadOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      stem_(config, reader, options),
      positions_(sinusoids(config.d_model)) {
  const std::string name(kAudioPrefix);
  conv_out_ = reader.linear(name + "conv_out", config.d_model, stem_.row_width(), false);
  for (int i = 0; i < config.layers; ++i) layers_.push_back(read_layer(reader, i));
  post_norm_ = read_norm(reader, name + "ln_post");
  proj1_ = reader.linear(name + "proj1", config.d_model, config.d_model, true);
  proj2_ = reader.linear(name + "proj2", config.output_dim, config.d_model, true);
}

AudioTower::Norm AudioTower::read_norm(WeightReader& reader, const std::string& name) const {
  return {reader.tensor(name + ".weight", {config_.d_model}), reader.tensor(name + ".bias", {config_.d_model})};
}

AudioTower::Layer AudioTower::read_layer(WeightReader& reader, int index) const {
  const std::string name = fmt::format("{}layers.{}.", kAudioPrefix, index);
  const int64_t width = config_.d_model, ffn = config_.ffn;
  return {.attention_norm = read_norm(reader, name + "self_attn_layer_norm"),
          .norm = read_norm(reader, name + "final_layer_norm"),
          .q = reader.linear(name + "self_attn.q_proj", width, width, true),
          .k = reader.linear(name + "self_attn.k_proj", width, width, true),
          .v = reader.linear(name + "self_attn.v_proj", width, width, true),
          .out = reader.linear(name + "self_attn.out_proj", width, width, true),
          .fc1 = reader.linear(name + "fc1", ffn, width, true),
          .fc2 = reader.linear(name + "fc2", width, ffn, true)};
}

Result<std::shared_ptr<const AudioTower>> AudioTower::load(const AudioConfig& config,
                                                           std::shared_ptr<WeightStore> store,
                                                           const LoadOptions& options) {
  if (config.head_dim() > kernels::kMaxHeadDim) {
    return error(StatusCode::kUnsupported, "audio_config: head_dim is {}; wanted at most {}", config.head_dim(),
                 kernels::kMaxHeadDim);
  }
  const auto weights = std::make_shared<WeightTable>();
  WeightReader reader(store, options, *weights);
  std::shared_ptr<const AudioTower> tower(new AudioTower(config, weights, reader, options));
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(tower->stem_.status());
  std::vector<std::string_view> ignore;
  const std::vector<std::string> left = store->unexpected({});
  for (const std::string& name : left) {
    if (!name.starts_with(kAudioPrefix)) ignore.push_back(name);
  }
  RETURN_IF_ERROR(store->check_all_taken(ignore));
  return tower;
}

Status AudioTower::encode(int64_t frames, std::span<const float> mel, kernels::Ops& ops, FunctionRef<bool()> keep_going,
                          std::vector<float>& features) const {
  CHECK(frames >= 1);
  CHECK(static_cast<int64_t>(mel.size()) == frames * config_.mel_bins);
  trace::Span span("encode", "audio");
  span.note("frames", frames);
  features.resize(static_cast<std::size_t>(audio_rows(frames) * config_.output_dim));
  Run run(*this, frames, ops, keep_going);
  RETURN_IF_ERROR(run.embed(ConstRows(mel.data(), frames, config_.mel_bins)));
  for (const Layer& layer : layers_) RETURN_IF_ERROR(run.layer(layer));
  return run.project(features.data());
}

}  // namespace millrace
