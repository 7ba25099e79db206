// make_sequence: the sequence of a request that has just been accepted.
// Thread safety: pure functions, but for the MediaIds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kv/media_ids.h"
#include "scheduler/options.h"
#include "scheduler/sequence.h"
#include "wire/generation.h"

namespace millrace {

// What is made of a request before it comes to the scheduler.
struct PreparedParts {
  std::shared_ptr<const grammar::TokenGrammar> grammar;  // of request.sampling.grammar, compiled
  std::shared_ptr<const PromptInput> input;              // of request.media, encoded; null: the prompt is tokens alone
  std::shared_ptr<RowState> row_state;                   // where its rows are no embeddings
  std::shared_ptr<RowCapture> capture;                   // null: none of its rows is wanted
};

// Puts the number of its picture in each placeholder of `prompt`. kUnavailable: the numbers are over.
Status key_media(const PromptInput& input, MediaIds& ids, std::vector<int32_t>& prompt);

// `now_us`: the scheduler's clock; deadlines count from it. `vocab_size`: of the model, whose tokens `options` names.
std::unique_ptr<Sequence> make_sequence(wire::TokenizedRequest request, PreparedParts prepared, uint64_t arrival,
                                        int64_t now_us, const SchedulerOptions& options, int32_t vocab_size);

}  // namespace millrace
