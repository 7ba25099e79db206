// Masks: for one grammar and one vocabulary, the tokens that may follow a text. A token may follow where text + token
// is the beginning of a text of the grammar, or, for the tokens that end a sequence, where the text is one of the
// grammar. The mask is a function of the text alone, so it depends on no other request, batch or placement.
//
// Matcher: where one request is in its grammar. It holds no text: it reads the request's tokens again after a
// retraction, or when the table of states was cleared.
//
// Owner: the runner; a Masks for each grammar in use, a Matcher for each request. Thread safety: none; the compute
// thread calls.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "grammar/state_table.h"
#include "grammar/token_trie.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxCachedMasks = 256;  // of one grammar: 19 KB each with 152,000 tokens

class Masks {
 public:
  Masks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie);

  StateTable& states() { return states_; }
  const TokenTrie& trie() const { return *trie_; }
  std::size_t memory_bytes() const { return states_.memory_bytes() + cache_.size() * trie_->plain().size() * 8; }
  // The tokens that may follow in this state, without those that end a sequence. Valid until the next call.
  const TokenMask& of(State state);

 private:
  struct Cached {
    State state = kDeadState;
    TokenMask mask;
  };
  // Calls allowed(token) for each that may follow.
  template <typename Allowed>
  void walk(State state, std::span<const TokenTrie::Node> nodes, const Allowed& allowed);
  void walk(State state, std::span<const TokenTrie::Node> nodes, TokenMask& mask);
  // Which characters, by their first bytes, lead to a state that takes plain text.
  struct PlainText {
    std::bitset<256> others;  // that tokens begin with, and that do not
    State next = kDeadState;  // where all that do lead to; kDeadState: to several states
  };
  PlainText plain_text_behind(State state);
  // Whether any plain text of kMaxPlainCharacters may follow, as in a string whose length is not used up.
  bool takes_plain_text(State state);
  // How many plain characters may follow, whatever they are, where these are fewer than kMaxPlainCharacters; 0: none,
  // or that depends on which they are.
  std::size_t last_plain_characters(State state);
  bool walk_around_plain_text(State state, TokenMask& mask);
  void walk_rests(State state, const PlainText& plain, TokenMask& mask);
  // Where all characters that begin with a byte lead to; kDeadState: nowhere, or not to the same state.
  State behind_character(State state, uint8_t lead);
  // Where every plain character leads to; kDeadState: not all to the same state.
  State find_plain_next(State state);

  const std::shared_ptr<const TokenTrie> trie_;
  StateTable states_;
  uint64_t generation_ = 0;  // of states_, that the cache is for
  std::list<Cached> cache_;  // the latest first
  std::unordered_map<State, std::list<Cached>::iterator> by_state_;
  std::unordered_map<State, State> plain_next_;  // the results of find_plain_next()
  std::vector<State> path_;                      // of walk(): the state before each depth
  // The first byte that the grammar and UTF-8 treat alike, for each byte; and one byte of each class in the ranges of
  // continuations.
  std::array<uint8_t, 256> alike_{};
  std::array<std::vector<uint8_t>, 5> continuations_;
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<Masks> masks) : masks_(std::move(masks)) {}

  // The tokens that may follow `before` and `last`, and `end_ids` where the text may end, and only there. What was read
  // in an earlier call is not read again, unless the table was cleared, or the tokens are fewer or others. The answer
  // depends on the tokens alone. kInternal: a token does not follow those before it; kTooLarge: the grammar is too
  // ambiguous for this text.
  Result<TokenMask> mask(std::span<const int32_t> before, std::optional<int32_t> last,
                         std::span<const int32_t> end_ids);
  // The same behind one more token than the last call, which was the newest use of the table.
  Result<TokenMask> mask_behind(int32_t token, std::span<const int32_t> end_ids);

 private:
  enum class Memory { kShared, kFresh };
  Result<TokenMask> try_mask(Memory memory, std::span<const int32_t> before, std::optional<int32_t> last,
                             std::span<const int32_t> end_ids);
  Status read(int32_t token, Memory memory);
  Status gave_up();
  TokenMask mask_here(std::span<const int32_t> end_ids);

  std::shared_ptr<Masks> masks_;
  std::size_t token_count_ = 0;
  int32_t last_read_ = 0;  // the last of them
  State state_ = -1;       // -1: nothing is read
  uint64_t generation_ = 0;
};

}  // namespace millrace::grammar
