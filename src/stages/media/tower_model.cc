#include "stages/media/tower_model.h"

#include <utility>
#include <vector>

#include "base/cpu_info.h"
#include "media/frame_pack.h"
#include "media/log_mel.h"
#include "media/resize.h"
#include "models/omni/audio_tower.h"
#include "models/vision/vision_tower.h"
#include "stages/media/remote_media.h"

namespace millrace {
namespace {

std::span<const uint8_t> bytes_of(const wire::PromptMedia& media) {
  return {reinterpret_cast<const uint8_t*>(media.bytes.bytes.data()), media.bytes.bytes.size()};
}

// Null where the facts have no pictures or no audio.
struct Towers {
  std::shared_ptr<const VisionTower> vision;
  std::shared_ptr<const AudioTower> audio;
};

class TowerModel : public MediaModel {
 public:
  // `threads`: 0: all processors.
  TowerModel(Towers towers, uint64_t weights_checksum, const MediaFacts& facts,
             std::shared_ptr<const MediaDecoder> decoder, kernels::Isa isa, kernels::Activations activations,
             int threads)
      : towers_(std::move(towers)),
        weights_checksum_(weights_checksum),
        facts_(facts),
        decoder_(std::move(decoder)),
        pool_(threads > 0 ? threads : cpu_info().usable_cpus),
        ops_(kernels::make_ops(isa, pool_, activations)) {}

  Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) override {
    const bool audio = media.kind == wire::MediaKind::kAudio;
    if (audio ? towers_.audio == nullptr : towers_.vision == nullptr) {
      return error(StatusCode::kUnsupported, "this model takes no {}", audio ? "audio" : "pictures");
    }
    return audio ? encode_audio(media, keep_going) : encode_picture(media, keep_going);
  }

  uint64_t weights_checksum() const override { return weights_checksum_; }

  // The rows of an audio stand as those of text do: one after the other on all axes.
  void set_positions(int32_t rows, std::span<const wire::PromptMedia> media, PromptInput& input) const override {
    set_media_positions(rows, media, towers_.vision ? towers_.vision->config().merge_size : 1, input);
  }

 private:
  Result<MediaFeatures> encode_picture(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) {
    const VisionGrid grid{media.grid_t, media.grid_h, media.grid_w};
    const VisionConfig& config = towers_.vision->config();
    RETURN_IF_ERROR(check_grid(media, grid));
    ASSIGN_OR_RETURN(const Patches patches, read_patches(media, grid, keep_going));
    auto values = std::make_shared<std::vector<float>>();
    RETURN_IF_ERROR(towers_.vision->encode(grid, {patches.all().data(), grid.patches(), config.patch_values()}, *ops_,
                                           keep_going, *values));
    return MediaFeatures{media.rows, config.feature_sets(), config.out_hidden_size, std::move(values)};
  }

  // The grid came with the request: it must be what the tower can do and what the rows are.
  Status check_grid(const wire::PromptMedia& media, VisionGrid grid) const {
    const int32_t merge = towers_.vision->config().merge_size;
    const bool divides = grid.height % merge == 0 && grid.width % merge == 0;
    if (grid.frames == 1 && divides && grid.patches() / (merge * merge) == media.rows) return ok_status();
    return invalid_argument("a grid of {} x {} x {} patches for {} rows; wanted one frame of {} x {} patches for each",
                            grid.frames, grid.height, grid.width, media.rows, merge, merge);
  }

  // The picture at the size that the server has chosen from its header.
  Result<Patches> read_patches(const wire::PromptMedia& media, VisionGrid grid, FunctionRef<bool()> keep_going) const {
    if (is_frame_pack(bytes_of(media))) return read_frames(media, grid);
    ASSIGN_OR_RETURN(const Image image, decoder_->picture(bytes_of(media), [&] { return !keep_going(); }));
    PatchConfig as_it_is = facts_.pictures->patches;
    const int32_t height = grid.height * as_it_is.patch_size, width = grid.width * as_it_is.patch_size;
    as_it_is.resize = false;
    return make_patches(resize_bicubic(image, width, height), as_it_is);
  }

  // Frames of a video, which have their size already.
  Result<Patches> read_frames(const wire::PromptMedia& media, VisionGrid grid) const {
    if (!facts_.videos) return error(StatusCode::kUnsupported, "this model takes no videos");
    const PatchConfig& config = facts_.videos->patches;
    ASSIGN_OR_RETURN(const std::vector<Image> frames, unpack_frames(bytes_of(media)));
    const int height = grid.height * config.patch_size, width = grid.width * config.patch_size;
    if (std::ssize(frames) != config.temporal_patch_size || frames[0].width() != width ||
        frames[0].height() != height) {
      return invalid_argument("{} frames of {} x {} pixels; wanted {} of {} x {}", frames.size(), frames[0].width(),
                              frames[0].height(), config.temporal_patch_size, width, height);
    }
    return make_patches(frames, config);
  }

  Result<MediaFeatures> encode_audio(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) {
    const AudioFacts& facts = *facts_.audio;
    ASSIGN_OR_RETURN(const std::vector<float> samples,
                     decoder_->speech(bytes_of(media), facts.limits, [&] { return !keep_going(); }));
    const int64_t frames = mel_frames(static_cast<int64_t>(samples.size()), facts.mel);
    if (frames != media.grid_t || audio_rows(frames) != media.rows) {
      return invalid_argument("the audio has {} frames and {} rows; wanted {} and {}, as when its header was read",
                              frames, audio_rows(frames), media.grid_t, media.rows);
    }
    ASSIGN_OR_RETURN(const std::vector<float> mel, log_mel(samples, facts.mel));
    auto values = std::make_shared<std::vector<float>>();
    RETURN_IF_ERROR(towers_.audio->encode(frames, mel, *ops_, keep_going, *values));
    return MediaFeatures{media.rows, 1, towers_.audio->config().output_dim, std::move(values)};
  }

  const Towers towers_;
  const uint64_t weights_checksum_;
  const MediaFacts facts_;
  const std::shared_ptr<const MediaDecoder> decoder_;
  ThreadPool pool_;
  const std::unique_ptr<kernels::Ops> ops_;
};

}  // namespace

Result<std::unique_ptr<MediaModel>> load_tower_model(const ModelOptions& options, const ModelConfig& config,
                                                     const MediaFacts& facts,
                                                     std::shared_ptr<const MediaDecoder> decoder,
                                                     const LoadProgress& progress, FrozenTensors* frozen) {
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  const auto report = [&progress](uint64_t done, uint64_t total) {
    progress("loading the towers", total ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
  };
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  ASSIGN_OR_RETURN(const kernels::Activations activations, kernels::activations_from_name(options.activations));
  ThreadPool pool(options.threads > 0 ? options.threads : cpu_info().usable_cpus);
  const LoadOptions load{.pool = &pool, .isa = isa, .progress = report};
  Towers towers;
  if (facts.pictures) {
    ASSIGN_OR_RETURN(towers.vision, VisionTower::load(*config.vision, store, load));
    if (frozen != nullptr) frozen->merge(FrozenTensors::of(towers.vision->weights()));
  }
  if (facts.audio) {
    ASSIGN_OR_RETURN(towers.audio, AudioTower::load(*config.audio, store, load));
  }
  RETURN_IF_ERROR(store->load_with_progress(report));
  return std::unique_ptr<MediaModel>(std::make_unique<TowerModel>(
      std::move(towers), store->checksum(), facts, std::move(decoder), isa, activations, options.threads));
}

}  // namespace millrace
