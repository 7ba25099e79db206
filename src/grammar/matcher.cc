#include "grammar/matcher.h"

#include <algorithm>

namespace millrace::grammar {
namespace {

constexpr std::size_t kMaxOtherBytes = 40;  // first bytes of plain tokens that are walked one by one

}  // namespace

Masks::Masks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)), states_(std::move(grammar)) {}

const TokenMask& Masks::of(State state) {
  if (generation_ != states_.generation()) {
    cache_.clear();
    by_state_.clear();
    plain_next_.clear();
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
  if (!walk_around_plain_text(state, entry.mask)) {
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

// Plain tokens are allowed together by their first byte: in a key that other keys begin like, only those are walked
// that begin with the other keys' next characters. False where so many are left that all may as well be walked.
bool Masks::walk_around_plain_text(State state, TokenMask& mask) {
  std::vector<uint8_t> others;
  if (!takes_plain_text(state)) {
    std::size_t nodes = 0;
    for (int byte = 0; byte < 256; ++byte) {
      const TokenTrie::FirstByte& first = trie_->beginning_with(static_cast<uint8_t>(byte));
      if (first.plain.empty() || takes_plain_text_behind(state, static_cast<uint8_t>(byte))) continue;
      others.push_back(static_cast<uint8_t>(byte));
      nodes += first.all.size();
      if (others.size() > kMaxOtherBytes || nodes > trie_->all().size() / 2) return false;
    }
  }
  mask = trie_->plain();
  for (const uint8_t byte : others) {
    const TokenMask& plain = trie_->beginning_with(byte).plain;
    for (std::size_t i = 0; i < mask.size(); ++i) mask[i] &= ~plain[i];
  }
  for (const uint8_t byte : others) walk(state, trie_->beginning_with(byte).all, mask);
  walk(state, trie_->not_plain(), mask);
  return true;
}

bool Masks::takes_plain_text(State state) {
  for (std::size_t i = 0; i < kMaxPlainCharacters; ++i) {
    const auto [known, added] = plain_next_.try_emplace(state, kDeadState);
    if (added) known->second = find_plain_next(state);
    const State next = known->second;
    if (next == kDeadState) return false;
    if (next == state) return true;
    state = next;
  }
  return true;
}

State Masks::find_plain_next(State state) {
  const State wanted = states_.step(state, static_cast<uint8_t>(' '));
  if (wanted == kDeadState) return kDeadState;
  for (int byte = 0x20; byte < 0x80; ++byte) {
    const bool same =
        !is_plain(static_cast<uint8_t>(byte)) || states_.step(state, static_cast<uint8_t>(byte)) == wanted;
    if (!same) return kDeadState;
  }
  for (int lead = 0xC2; lead <= 0xF4; ++lead) {
    if (behind_character(state, static_cast<uint8_t>(lead)) != wanted) return kDeadState;
  }
  return wanted;
}

bool Masks::takes_plain_text_behind(State state, uint8_t first) {
  const State next = behind_character(state, first);
  return next != kDeadState && takes_plain_text(next);
}

// The continuations of a lead byte are those of Unicode 15, table 3-7.
State Masks::behind_character(State state, uint8_t lead) {
  State first = states_.step(state, lead);
  if (lead < 0x80) return is_plain(lead) ? first : kDeadState;
  std::vector<State> open{first}, next;
  const auto step_all = [&](int low, int high) {
    next.clear();
    for (const State from : open) {
      for (int byte = low; byte <= high; ++byte) next.push_back(states_.step(from, static_cast<uint8_t>(byte)));
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    open.swap(next);
  };
  const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  step_all(lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF);
  for (int i = 1; i < more; ++i) step_all(0x80, 0xBF);
  return open.size() == 1 ? open[0] : kDeadState;
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
