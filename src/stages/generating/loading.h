// From a model directory to the parts that serve it.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/model_config.h"
#include "models/frozen_tensors.h"
#include "models/model.h"
#include "scheduler/scheduler.h"
#include "stages/engine.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/live_commands.h"
#include "stages/generating/model_options.h"
#include "stages/generating/snapshot_writer.h"
#include "stages/generating/weight_stager.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace millrace {

// All of a model but its weights.
struct TextComponents {
  ModelDir dir;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  ModelFacts facts;
  std::vector<int32_t> eos_token_ids;  // of the model's files and its tokenizer together
  std::size_t max_prompt_bytes = 0;    // a longer text cannot fit the context whatever it is
};

// `served_name`: how clients know the model; empty: as its directory is called.
Result<TextComponents> load_text_components(const ModelOptions& options, const std::string& served_name = "");

// The weights in memory as this processor reads them best, and the model over them. `layers`: those of the range alone;
// nullopt: all.
Result<std::shared_ptr<const Model>> load_weights(const ModelOptions& options, const LoadProgress& progress,
                                                  std::optional<LayerRange> layers = std::nullopt);

// The tensors of `parts` of options.model, into `frozen`, for the two below: they take it empty, and it is filled while
// the stage loads, here with what the stage does not load itself (stages/media/tower_model.h).
Status read_frozen_tensors(const ModelOptions& options, FrozenParts parts, FrozenTensors& frozen);

// What else a folder of new weights must meet, by its path; empty: nothing.
using CheckFolder = std::function<Status(const std::string& path)>;

// Makes the weights of another folder, in the same form, on one thread; an empty path: of the model's own. The folder
// lies below options.weights_root or weights_snapshot_dir, or is the model's own; kPermissionDenied otherwise.
// kInvalidArgument where its configuration is not `config`, that of the start; kResourceExhausted where the free memory
// is less than the folder's weights, with both numbers. The packed cache is left as it is. A folder of a model that
// takes pictures or audio must prepare them as `media` does, that of the start, and have the `frozen` tensors of the
// parts beside its language model; null: there are none.
MakeWeights make_weights_of(const ModelOptions& options, const ModelConfig& config, const MediaFacts& media,
                            std::shared_ptr<const FrozenTensors> frozen, CheckFolder check = nullptr);

// Quantizes and packs what a trainer sends as the serving weights were. kResourceExhausted as above.
MakeLiveWeights make_live_weights_of(const ModelOptions& options, std::shared_ptr<const FrozenTensors> frozen);

// Into options.weights_snapshot_dir; empty where there is none.
WriteSnapshot write_snapshot_of(const ModelOptions& options);

// What --quantize wants of the matrices; nullopt: they stay as the file holds them.
std::optional<DType> quantize_option(const ModelOptions& options);

SchedulerOptions scheduler_options(const ModelOptions& options, std::vector<int32_t> eos_token_ids);

}  // namespace millrace
