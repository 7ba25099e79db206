#include "grammar/matcher.h"

#include <algorithm>

namespace millrace::grammar {

Masks::Masks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)), states_(std::move(grammar)) {}

const TokenMask& Masks::of(State state) {
  if (generation_ != states_.generation()) {
    cache_.clear();
    by_state_.clear();
    generation_ = states_.generation();
  }
  if (const auto known = by_state_.find(state); known != by_state_.end()) {
    cache_.splice(cache_.begin(), cache_, known->second);
    return cache_.front().mask;
  }
  if (cache_.size() >= kMaxCachedMasks) {
    by_state_.erase(cache_.back().state);
    cache_.splice(cache_.begin(), cache_, std::prev(cache_.end()));
  } else {
    cache_.emplace_front();
  }
  Cached& entry = cache_.front();
  entry.state = state;
  by_state_[state] = cache_.begin();
  if (takes_plain_text(state)) {
    entry.mask = trie_->plain();
    walk(state, trie_->not_plain(), entry.mask);
  } else {
    entry.mask.assign(trie_->plain().size(), 0);
    walk(state, trie_->all(), entry.mask);
  }
  for (const auto& [id, twin] : trie_->twins()) {
    if (allows(entry.mask, id)) allow(entry.mask, twin);
  }
  return entry.mask;
}

void Masks::walk(State state, std::span<const TokenTrie::Node> nodes, TokenMask& mask) {
  if (path_.empty()) path_.resize(1);
  path_[0] = state;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const State next = states_.step(path_[node.depth], node.byte);
    if (next == kDeadState) {
      i += node.skip;
      continue;
    }
    if (node.token >= 0) allow(mask, node.token);
    if (path_.size() <= std::size_t{node.depth} + 1) path_.resize(std::size_t{node.depth} + 2);
    path_[std::size_t{node.depth} + 1] = next;
    ++i;
  }
}

// The encodings of all characters of two to four bytes are six forms (Unicode 15, table 3-7); in each, the bytes of a
// range lead through the same kind of states where any text is taken.
bool Masks::takes_plain_text(State state) {
  struct Form {
    uint8_t low, high, second_low, second_high;
    int more;
  };
  constexpr Form kForms[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2},
                             {0xED, 0xED, 0x80, 0x9F, 2}, {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                             {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};
  for (int byte = 0x20; byte < 0x80; ++byte) {
    if (is_plain(static_cast<uint8_t>(byte)) && states_.step(state, static_cast<uint8_t>(byte)) != state) return false;
  }
  // Every state that the bytes so far lead to; they are few where this succeeds.
  std::vector<State> open, next;
  const auto step_all = [&](int low, int high) {
    next.clear();
    for (const State from : open) {
      for (int byte = low; byte <= high; ++byte) next.push_back(states_.step(from, static_cast<uint8_t>(byte)));
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    open.swap(next);
  };
  for (const Form& form : kForms) {
    open = {state};
    step_all(form.low, form.high);
    step_all(form.second_low, form.second_high);
    for (int i = 1; i < form.more; ++i) step_all(0x80, 0xBF);
    if (open.size() != 1 || open[0] != state) return false;
  }
  return true;
}

// kFresh: as if the table were used for the first time; its answer then depends on the text alone.
Status Matcher::read(int32_t token, Memory memory) {
  StateTable& states = masks_->states();
  if (memory == Memory::kFresh || states.full()) {
    state_ = states.keep_only(state_);
    generation_ = states.generation();
  }
  const TokenTrie& trie = masks_->trie();
  if (token < 0 || token >= trie.vocab_size()) {
    return internal_error("token {} is not in the grammar's vocabulary of {}", token, trie.vocab_size());
  }
  const std::string_view bytes = trie.bytes(token);
  const State next = bytes.empty() ? kDeadState : states.step(state_, bytes);
  if (next == kDeadState) {
    return internal_error("token {} does not follow {} tokens of the grammar", token, token_count_);
  }
  state_ = next;
  ++token_count_;
  last_read_ = token;
  return ok_status();
}

Result<TokenMask> Matcher::try_mask(Memory memory, std::span<const int32_t> before, std::optional<int32_t> last,
                                    std::span<const int32_t> end_ids) {
  StateTable& states = masks_->states();
  if (memory == Memory::kFresh) states.clear();
  const std::size_t count = before.size() + (last ? 1 : 0);
  const bool other = token_count_ > 0 && token_count_ <= count &&
                     (token_count_ <= before.size() ? before[token_count_ - 1] : *last) != last_read_;
  if (state_ < 0 || generation_ != states.generation() || count < token_count_ || other) {
    state_ = states.start();
    generation_ = states.generation();
    token_count_ = 0;
  }
  while (token_count_ < before.size()) RETURN_IF_ERROR(read(before[token_count_], memory));
  if (token_count_ < count) RETURN_IF_ERROR(read(*last, memory));
  if (memory == Memory::kFresh || states.full()) {
    state_ = states.keep_only(state_);
    generation_ = states.generation();
  }
  TokenMask mask = masks_->of(state_);
  if (states.can_end(state_)) {
    for (const int32_t id : end_ids) allow(mask, id);
  }
  return mask;
}

Result<TokenMask> Matcher::mask(std::span<const int32_t> before, std::optional<int32_t> last,
                                std::span<const int32_t> end_ids) {
  StateTable& states = masks_->states();
  Result<TokenMask> mask = try_mask(Memory::kShared, before, last, end_ids);
  if (!states.overflown()) return mask;
  mask = try_mask(Memory::kFresh, before, last, end_ids);
  if (!states.overflown()) return mask;
  states.clear();
  return invalid_argument("the grammar is too ambiguous: over {} positions at one place of a text, or {} behind it",
                          kMaxPositions, kGrowth * kMaxKeptPositions);
}

}  // namespace millrace::grammar
