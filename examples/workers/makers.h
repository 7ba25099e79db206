// The makers of the workers, one for each (examples/workers/workers.h). Thread safety: pure functions.
#pragma once

#include <memory>

#include "stages/worker.h"

namespace millrace::examples {

using MadeWorker = Result<std::unique_ptr<Worker>>;

MadeWorker make_echo(const Value& args);
MadeWorker make_batch_echo(const Value& args);
MadeWorker make_preprocess(const Value& args);
MadeWorker make_image_encoder(const Value& args);
MadeWorker make_audio_encoder(const Value& args);
MadeWorker make_aggregate(const Value& args);
MadeWorker make_think(const Value& args);
MadeWorker make_talk(const Value& args);
MadeWorker make_decode(const Value& args);
MadeWorker make_tone(const Value& args);

}  // namespace millrace::examples
