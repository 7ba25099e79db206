// make_sequence: the sequence of a request that has just been accepted.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "scheduler/sequence.h"
#include "wire/generation.h"

namespace millrace {

// `now_us`: the scheduler's clock; deadlines count from it. `eos_token_ids` are the model's, of `vocab_size` tokens.
// `grammar`: of request.sampling.grammar, compiled.
std::unique_ptr<Sequence> make_sequence(wire::TokenizedRequest request,
                                        std::shared_ptr<const grammar::TokenGrammar> grammar, uint64_t arrival,
                                        int64_t now_us, std::span<const int32_t> eos_token_ids, int32_t vocab_size);

}  // namespace millrace
