// TokenGrammar: a grammar over one vocabulary, all that a mask is made of.
//
// Owner: shared_ptr; shared by the requests with the same source and vocabulary. Thread safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace millrace::grammar {

struct TokenGrammar {
  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const TokenTrie> trie;
  std::vector<int32_t> end_ids;  // the tokens that end a sequence: allowed where a text may end
};

}  // namespace millrace::grammar
