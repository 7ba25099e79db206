// The workers that need a model (stages/generating/workers.h), made from their entries in a pipeline's file:
//
//   tokenize    model, chat (false), context_length
//   generate    model and what `millrace serve` has for it, with '_' for '-': threads, page_size, kv_gib, kv_dtype,
//               context_length, max_running_requests, max_queued_requests, chunked_prefill_tokens, schedule_policy, ...
//   layers      model, threads, quantize, packed_cache_dir, kv_dtype, kv_gib,
//               context_length: as `generate` of its chain
//   prefill     as `generate` of the stage whose prompts it computes
//   encode      model, threads, quantize: as `generate` of the stage whose media it encodes
//   detokenize  model
//   talk        model, threads, quantize, page_size, kv_dtype, max_running_requests, max_queued_requests,
//               chunked_prefill_tokens, overlap: as `generate`
//   vocode      model, threads
//
// `model` is a Hugging Face model directory, relative to where the process was started. Replicas of a stage share the
// threads and the memory, as --dp does.
//
// All but `tokenize` take the model of the command line where they have no args (pipeline/text_pipeline.h).
//
// Thread safety: add_model_workers() on one thread; each worker is made on its own thread.
#pragma once

#include <optional>

#include "app/options.h"
#include "stages/generating/workers.h"
#include "stages/library.h"

namespace millrace {

// The options in the args of a stage `generate`; nullopt: it has none.
Result<std::optional<ModelOptions>> generate_options(const Value& args);
// `command_line`: what stages without args take.
void add_model_workers(Library& library, const ModelOptions& command_line);

}  // namespace millrace
