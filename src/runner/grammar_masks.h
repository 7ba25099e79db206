// GrammarMasks: which tokens the grammars of requests allow next. It knows the requests of recent batches, so that a
// text is read once and not in each step; what it forgets, it reads again from the step's generated tokens. A mask is a
// function of these tokens and the grammar alone, in any company (grammar/matcher.h).
//
// Owner: the model runner. Thread safety: none; its compute thread calls.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/ids.h"
#include "base/status.h"
#include "grammar/matcher.h"
#include "grammar/token_grammar.h"
#include "runner/runner.h"

namespace millrace {

inline constexpr std::size_t kMaxMaskBytes = std::size_t{512} << 20;  // of the tables of all grammars
inline constexpr uint64_t kKeptBatches = 256;                         // a request that none of them named is forgotten

class GrammarMasks {
 public:
  // The tokens that may follow the generated ones of `step`, whose token in flight is known. kInvalidArgument where the
  // vocabulary has none; otherwise the errors of grammar::Matcher.
  Result<grammar::TokenMask> of(const SequenceStep& step);
  // The same into `mask`; nothing where the step draws no token, or under no grammar.
  Status fill(const SequenceStep& step, grammar::TokenMask& mask);
  // Behind `token`, drawn for `step` under the mask of of(): the tokens that the grammar leaves no choice about,
  // step.forced_limit at most, up to one that ends the text. Their masks are those that later steps need.
  std::vector<int32_t> forced_behind(const SequenceStep& step, int32_t token);
  // After each batch: forgets what was not used for long, or is too large together.
  void end_batch();

 private:
  using Key = const grammar::TokenGrammar*;
  struct Table {
    std::shared_ptr<const grammar::TokenGrammar> grammar;  // keeps the key's address taken
    std::shared_ptr<grammar::Masks> masks;
    uint64_t used = 0;  // the batch
  };
  struct Reader {
    Key key = nullptr;
    grammar::Matcher matcher;
    uint64_t used = 0;
  };
  Table& table_of(const std::shared_ptr<const grammar::TokenGrammar>& grammar);

  uint64_t batch_ = 0;
  std::unordered_map<Key, Table> tables_;
  std::unordered_map<ReqId, Reader> readers_;
};

}  // namespace millrace
