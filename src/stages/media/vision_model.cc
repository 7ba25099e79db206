#include "stages/media/vision_model.h"

#include <vector>

#include "base/cpu_info.h"
#include "media/image.h"
#include "media/resize.h"
#include "models/vision/mrope.h"

namespace millrace {
namespace {

std::span<const uint8_t> bytes_of(const wire::PromptMedia& media) {
  return {reinterpret_cast<const uint8_t*>(media.bytes.bytes.data()), media.bytes.bytes.size()};
}

class VisionModel : public MediaModel {
 public:
  VisionModel(std::shared_ptr<const VisionTower> tower, const PatchConfig& patches, kernels::Isa isa, int threads)
      : tower_(std::move(tower)),
        patches_(patches),
        pool_(threads > 0 ? threads : cpu_info().usable_cpus),
        ops_(kernels::make_ops(isa, pool_)) {}

  Result<MediaFeatures> encode(const wire::PromptMedia& media, FunctionRef<bool()> keep_going) override {
    const VisionGrid grid{media.grid_t, media.grid_h, media.grid_w};
    const VisionConfig& config = tower_->config();
    RETURN_IF_ERROR(check_grid(media, grid));
    ASSIGN_OR_RETURN(const Patches patches, read_patches(media, grid));
    auto values = std::make_shared<std::vector<float>>();
    RETURN_IF_ERROR(tower_->encode(grid, {patches.all().data(), grid.patches(), config.patch_values()}, *ops_,
                                   keep_going, *values));
    return MediaFeatures{media.rows, config.feature_sets(), config.out_hidden_size, std::move(values)};
  }

  void set_positions(int32_t rows, std::span<const wire::PromptMedia> media, PromptInput& input) const override {
    const int32_t merge = tower_->config().merge_size;
    std::vector<PictureRows> pictures;
    for (const wire::PromptMedia& one : media) pictures.push_back({one.begin, one.grid_h / merge, one.grid_w / merge});
    MropePositions positions = mrope_positions(rows, pictures);
    input.positions = std::move(positions.rows);
    input.delta = positions.delta;
  }

 private:
  // The grid came with the request: it must be what the tower can do and what the rows are.
  Status check_grid(const wire::PromptMedia& media, VisionGrid grid) const {
    const int32_t merge = tower_->config().merge_size;
    const bool divides = grid.height % merge == 0 && grid.width % merge == 0;
    if (grid.frames == 1 && divides && grid.patches() / (merge * merge) == media.rows) return ok_status();
    return invalid_argument("a grid of {} x {} x {} patches for {} rows; wanted one frame of {} x {} patches for each",
                            grid.frames, grid.height, grid.width, media.rows, merge, merge);
  }

  // The picture at the size that the server has chosen from its header.
  Result<Patches> read_patches(const wire::PromptMedia& media, VisionGrid grid) const {
    ASSIGN_OR_RETURN(const Image image, decode_image(bytes_of(media)));
    const int32_t height = grid.height * patches_.patch_size, width = grid.width * patches_.patch_size;
    PatchConfig as_it_is = patches_;
    as_it_is.resize = false;
    return make_patches(resize_bicubic(image, width, height), as_it_is);
  }

  const std::shared_ptr<const VisionTower> tower_;
  const PatchConfig patches_;
  ThreadPool pool_;
  const std::unique_ptr<kernels::Ops> ops_;
};

}  // namespace

std::unique_ptr<MediaModel> make_vision_model(std::shared_ptr<const VisionTower> tower, const PatchConfig& patches,
                                              kernels::Isa isa, int threads) {
  return std::make_unique<VisionModel>(std::move(tower), patches, isa, threads);
}

Result<std::unique_ptr<MediaModel>> load_vision_model(const ModelOptions& options, const ModelConfig& config,
                                                      const PatchConfig& patches, const LoadProgress& progress) {
  ASSIGN_OR_RETURN(WeightStore opened, WeightStore::open(options.model));
  auto store = std::make_shared<WeightStore>(std::move(opened));
  const auto report = [&progress](uint64_t done, uint64_t total) {
    progress("loading the vision tower", total ? static_cast<double>(done) / static_cast<double>(total) : 1.0);
  };
  ASSIGN_OR_RETURN(const kernels::Isa isa, kernels::resolve_isa());
  ThreadPool pool(options.threads > 0 ? options.threads : cpu_info().usable_cpus);
  ASSIGN_OR_RETURN(auto tower,
                   VisionTower::load(*config.vision, store, {.pool = &pool, .isa = isa, .progress = report}));
  RETURN_IF_ERROR(store->load_with_progress(report));
  return make_vision_model(std::move(tower), patches, isa, options.threads);
}

}  // namespace millrace
