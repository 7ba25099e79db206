// Example workers: small, deterministic workers and rules, with formulas that a page of Python repeats
// (tests/oracles/stages_toys.py). They make pipelines that run anywhere and whose every byte can be checked:
// examples/pipelines/fanin.yaml is made of them, in the shape of a model that hears, sees and speaks.
//
// A request's payload is a map {"text", "image", "audio", "modalities", "max_tokens"}, all optional. An image is a U8
// tensor [height, width, 3] or {"width", "height", "seed"}; a sound is an I16 tensor [samples] or {"samples", "seed"}.
// Modalities are "text" and "audio", what the answer is to be; without any, text.
//
// Args of all workers: sleep_ms (computes for so long on each payload or step), fail_on and throw_on (fails, or throws,
// on a payload with this text). Of those that generate: pace_ms (between two steps; costs no time of the worker's).
//
// Thread safety: add_example_workers() on one thread; the workers as stages/worker.h says; the rules are pure.
#pragma once

#include "stages/library.h"

namespace millrace {

// Workers: toy.echo, toy.batch_echo {max_batch, max_wait_ms, max_cost}, toy.preprocess, toy.encode_image {size and a
// batch's limits}, toy.encode_audio {window}, toy.aggregate, toy.think {steps, width}, toy.talk, toy.decode, toy.tone
// {samples}. Rules: toy.active_encoders, toy.active_generators, toy.active_listeners, toy.active_sources, toy.merge,
// toy.only_image, toy.only_audio, toy.terminals.
void add_example_workers(Library& library);

inline constexpr int64_t kMaxPixels = 4096 * 4096;
inline constexpr int64_t kMaxWaveformSamples = 16 << 20;
inline constexpr int64_t kMaxSteps = 1 << 20;

}  // namespace millrace
