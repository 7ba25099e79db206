// The towers of a multimodal model as a MediaModel. A picture is decoded, brought to its grid, and its patches go
// through the vision tower; of an audio, resampled, the log-mel frames go through the audio tower.
//
// Thread safety: free functions; the models: as MediaModel.
#pragma once

#include <memory>

#include "formats/model_config.h"
#include "media/media_decoder.h"
#include "models/frozen_tensors.h"
#include "stages/generating/model_options.h"
#include "stages/media/media_model.h"
#include "stages/media/media_rows.h"
#include "stages/worker.h"

namespace millrace {

// Loads the towers of options.model that `facts` wants. The errors of VisionTower::load and AudioTower::load.
// `decoder`: of pictures and audio. `frozen`, where it is not null, gets the vision tower's tensors.
Result<std::unique_ptr<MediaModel>> load_tower_model(const ModelOptions& options, const ModelConfig& config,
                                                     const MediaFacts& facts,
                                                     std::shared_ptr<const MediaDecoder> decoder,
                                                     const LoadProgress& progress, FrozenTensors* frozen = nullptr);

}  // namespace millrace
