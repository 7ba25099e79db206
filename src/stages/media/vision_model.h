// A vision tower as a MediaModel: decodes a picture, brings it to its grid, and takes its patches through the tower.
//
// Thread safety: free functions; the models: as MediaModel.
#pragma once

#include <memory>

#include "formats/model_config.h"
#include "media/patches.h"
#include "models/vision/vision_tower.h"
#include "stages/generating/model_options.h"
#include "stages/media/media_model.h"
#include "stages/worker.h"

namespace millrace {

// `threads`: 0: all processors.
std::unique_ptr<MediaModel> make_vision_model(std::shared_ptr<const VisionTower> tower, const PatchConfig& patches,
                                              kernels::Isa isa, int threads);

// Loads the tower of options.model, whose config has one. The errors of VisionTower::load.
Result<std::unique_ptr<MediaModel>> load_vision_model(const ModelOptions& options, const ModelConfig& config,
                                                      const PatchConfig& patches, const LoadProgress& progress);

}  // namespace millrace
