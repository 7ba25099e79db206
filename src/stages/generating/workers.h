// The workers of generating stages, for pipelines of any shape (for users: docs/pipelines.md):
//
//   tokenize    {"text"} or {"messages"}            -> the same with {"ids"} instead
//   generate    {"ids", "sampling"}        ~> token deltas, -> {"ids", "finish_reason", "usage", ...}
//   detokenize  ~> token deltas, -> {"ids", ...}    ~> text deltas, -> the same with {"text"}
//
//   layers      nothing: rows of hidden values, from one range of a model's layers to the next
//   prefill     nothing: KV pages of prompts, for a stage `generate`
//   encode      nothing: features of pictures and audio, for a stage `generate`
//
// What else stands in a payload goes on untouched: routes and merges may need it. A prompt that the server has
// tokenized comes to `generate` as a wire::TokenizedRequest instead; its deltas then carry all, and both results are
// null.
//
// `generate` is a GeneratingEngine: continuous batching over all its requests, and the same tokens for the same
// request. What it cannot send because a receiver is slow, it keeps and sends in larger deltas. Stop strings end a
// request here, at the id that completes one, and again in `detokenize`, which cuts the text: its options travel in the
// first delta, and under "detokenize" in the result, where they are not the defaults.
//
// `detokenize` sends few deltas: tokens that make no text yet wait for the next one with text, logprobs or the end, or
// until they are kMaxHeldTokens. A delta's tokens are all of one weight version.
//
// What reads payloads in the words of the api comes from outside (api/prompt_values.h): the fields, their ranges and
// their defaults are those of the HTTP endpoints.
//
// Thread safety: free functions; the workers: see stages/worker.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "stages/engine.h"
#include "stages/generating/generating_engine.h"
#include "stages/generating/live_commands.h"
#include "stages/generating/model_options.h"
#include "stages/generating/snapshot_writer.h"
#include "stages/generating/speech_inputs.h"
#include "stages/generating/weight_stager.h"
#include "stages/kv_disk/saved_prefixes.h"
#include "stages/kv_event_stream.h"
#include "stages/library.h"
#include "stages/media/media_model.h"
#include "stages/prompt_encoder.h"
#include "stages/transfer/transfer_service.h"
#include "text/tokenizer.h"

namespace millrace {

// The prompt that a payload holds.
using ReadPrompt = std::function<Result<Prompt>(const Value& payload)>;
// All of a request but its prompt.
using ReadRequest = std::function<Result<GenerateRequest>(const Value& payload)>;

// The transfers of a stage whose runner is loaded: KV pages of prompts that other servers compute, or want.
// `jobs`: of a stage that computes whatever is wanted.
using MakeTransfers = std::function<Result<std::unique_ptr<transfer::TransferService>>(
    GeneratingEngine& engine, std::optional<transfer::PrefillJobs> jobs)>;

// The prompts of a stage that are kept on disk, once its runner is loaded.
using MakeSavedPrefixes = std::function<Result<std::unique_ptr<kv_disk::SavedPrefixes>>(GeneratingEngine& engine)>;

// A stage's KV events, where a subscriber may listen.
using MakeKvEvents = std::function<Result<std::unique_ptr<KvEventStream>>()>;

// What encodes pictures; called while the stage loads.
using MakeMedia = std::function<Result<std::unique_ptr<MediaModel>>(const LoadProgress& progress)>;

inline constexpr std::size_t kMaxHeldTokens = 64;  // of one request, waiting for their text

struct GenerateParts {
  SchedulerOptions options;
  LoadRunner load;
  std::shared_ptr<const Tokenizer> tokenizer;  // for stop strings; null: requests with some are refused
  ReadRequest read_request;
  bool streams = true;                // its chunks have receivers
  bool to_client = false;             // namely the client, which gets {"ids"}
  MakeKvEvents make_kv_events;        // empty: no subscriber listens
  MakeMedia make_media;               // empty: the model takes text only
  MakeWeights make_weights;           // empty: the weights are never updated
  LiveOptions live{};                 // without `make`: nor by a trainer
  WriteSnapshot write_snapshot{};     // empty: weights that serve are kept nowhere
  uint64_t text_checksum = 0;         // as of the others
  MakeTransfers make_transfers = {};  // empty: there are none
  SpeechTarget speech = {};           // without a stage: answers are text alone
  MakeSavedPrefixes make_saved = {};  // empty: none are kept
  StageSpans spans = {};              // of the ranges of a layer split
};

// As in GenerateParts.
struct PrefillParts {
  SchedulerOptions options;
  LoadRunner load;
  MakeWeights make_weights;
  LiveOptions live{};
  WriteSnapshot write_snapshot{};
  uint64_t text_checksum = 0;
  MakeTransfers make_transfers;
};

struct EncodeParts {
  MakeMedia make_media;
  OpenTransferLinks open;
  wire::EncoderFacts facts;
  uint64_t text_checksum = 0;
};

struct LayersParts {
  ModelOptions options;
  std::shared_ptr<const ChainSlot> chain;
  uint64_t text_checksum = 0;  // as of the others
};

// `text_checksum`, here and below: of the model's small files; 0: unknown.
std::unique_ptr<Worker> make_tokenize_worker(PromptEncoder encoder, ReadPrompt read_prompt, uint64_t text_checksum = 0);
std::unique_ptr<Worker> make_generate_worker(GenerateParts parts);
std::unique_ptr<Worker> make_detokenize_worker(std::shared_ptr<const Tokenizer> tokenizer,
                                               const Library::WorkerSlot& slot, uint64_t text_checksum = 0);
std::unique_ptr<Worker> make_prefill_worker(PrefillParts parts);
std::unique_ptr<Worker> make_encode_worker(EncodeParts parts);
// A range of a layer split, not the first one.
std::unique_ptr<Worker> make_layers_worker(LayersParts parts);

}  // namespace millrace
