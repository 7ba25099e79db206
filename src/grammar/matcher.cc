#include "grammar/matcher.h"

#include <algorithm>

namespace millrace::grammar {
namespace {

constexpr std::size_t kMaxOtherBytes = 40;  // first bytes of plain tokens that are walked one by one

// The second bytes of characters (Unicode 15, table 3-7): a range of them for each kind of lead byte. The first range
// is that of all later bytes too. Not base/utf8.h, which checks a text: here the ranges themselves are enumerated.
struct Range {
  int low, high;
};
constexpr Range kContinuations[] = {{0x80, 0xBF}, {0xA0, 0xBF}, {0x80, 0x9F}, {0x90, 0xBF}, {0x80, 0x8F}};

struct Lead {
  int more = 0;  // bytes of the character behind this one
  std::size_t range = 0;
  bool operator==(const Lead&) const = default;
};

// more < 0: no character of plain text begins with it.
Lead lead_of(int byte) {
  if (byte < 0x80) return {is_plain(static_cast<uint8_t>(byte)) ? 0 : -1};
  if (byte < 0xC2 || byte > 0xF4) return {-1};
  if (byte < 0xE0) return {1};
  if (byte < 0xF0) return {2, byte == 0xE0 ? 1u : byte == 0xED ? 2u : 0u};
  return {3, byte == 0xF0 ? 3u : byte == 0xF4 ? 4u : 0u};
}

}  // namespace

Masks::Masks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : trie_(std::move(trie)), states_(grammar) {
  CHECK(trie_ != nullptr);
  // Bytes that the grammar and UTF-8 treat alike lead to the same states, so one of each class is asked for all of
  // them.
  for (int byte = 0; byte < 256; ++byte) {
    int first = 0;
    const auto alike = [&](int other) {
      return grammar->byte_class(static_cast<uint8_t>(other)) == grammar->byte_class(static_cast<uint8_t>(byte)) &&
             lead_of(other) == lead_of(byte);
    };
    while (!alike(first)) ++first;
    alike_[static_cast<std::size_t>(byte)] = static_cast<uint8_t>(first);
  }
  for (std::size_t range = 0; range < continuations_.size(); ++range) {
    std::vector<bool> seen(static_cast<std::size_t>(grammar->class_count()));
    for (int byte = kContinuations[range].low; byte <= kContinuations[range].high; ++byte) {
      auto in_class = seen[grammar->byte_class(static_cast<uint8_t>(byte))];
      if (!in_class) continuations_[range].push_back(static_cast<uint8_t>(byte));
      in_class = true;
    }
  }
}

const TokenMask& Masks::of(State state) {
  // Numbers of states are given anew after a clear(): every mask by number is void then.
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
  // The oldest entry is used again, memory and all.
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
  // The trie holds one token for each byte string; the others with the same bytes get its bit.
  for (const auto& [id, twin] : trie_->twins()) {
    if (allows(entry.mask, id)) allow(entry.mask, twin);
  }
  return entry.mask;
}

template <typename Allowed>
void Masks::walk(State state, std::span<const TokenTrie::Node> nodes, const Allowed& allowed) {
  if (path_.empty()) path_.resize(1);
  // Depth first: path_[d] is the state before the byte at depth d. A node's subtree is behind it in the array, so a
  // dead state leaves it out by one addition, and the states of the path are never computed twice.
  path_[0] = state;
  for (std::size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const State next = states_.step(path_[node.depth], node.byte);
    if (next == kDeadState) {
      i += node.skip;
      continue;
    }
    if (node.token >= 0) allowed(node.token);
    if (path_.size() <= std::size_t{node.depth} + 1) path_.resize(std::size_t{node.depth} + 2);
    path_[std::size_t{node.depth} + 1] = next;
    ++i;
  }
}

void Masks::walk(State state, std::span<const TokenTrie::Node> nodes, TokenMask& mask) {
  walk(state, nodes, [&mask](int32_t id) { allow(mask, id); });
}

// Plain tokens are allowed together by their first byte: in a key that other keys begin like, only those are walked
// that begin with the other keys' next characters. False where so many are left that all may as well be walked.
bool Masks::walk_around_plain_text(State state, TokenMask& mask) {
  if (const std::size_t characters = last_plain_characters(state); characters > 0) {
    mask = trie_->plain_up_to(characters);
    walk(state, trie_->not_plain(), mask);
    return true;
  }
  const PlainText plain = plain_text_behind(state);
  std::vector<const TokenTrie::FirstByte*> others;
  std::size_t nodes = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (!plain.others[static_cast<std::size_t>(byte)]) continue;
    others.push_back(&trie_->beginning_with(static_cast<uint8_t>(byte)));
    nodes += others.back()->all.size();
  }
  if (others.size() > kMaxOtherBytes || nodes > trie_->all().size() / 2) return false;
  // Everything that is plain, less what begins with one of the other bytes; those are walked one by one.
  mask = trie_->plain();
  for (const auto* other : others) {
    for (std::size_t i = 0; i < other->plain.size(); ++i) mask[i] &= ~other->plain[i];
  }
  for (const auto* other : others) walk(state, other->all, mask);
  // The entry exists: takes_plain_text() has looked at this state.
  if (plain.next != kDeadState && plain_next_.at(plain.next) == plain.next) {
    walk_rests(state, plain, mask);
  } else {
    walk(state, trie_->not_plain(), mask);
  }
  return true;
}

// Behind a plain character that is none of the others the state is plain.next, and stays so.
void Masks::walk_rests(State state, const PlainText& plain, TokenMask& mask) {
  const auto allow_if = [&](const auto& wanted) {
    return [this, &mask, wanted](int32_t number) {
      for (const auto& [id, first] : trie_->group(number)) {
        if (wanted(first)) allow(mask, id);
      }
    };
  };
  const auto behind_plain =
      allow_if([&](int32_t first) { return first >= 0 && !plain.others[static_cast<std::size_t>(first)]; });
  behind_plain(TokenTrie::kNoRest);
  if (state == plain.next) return walk(state, trie_->rests(), allow_if([](int32_t) { return true; }));
  walk(plain.next, trie_->rests(), behind_plain);
  walk(state, trie_->rests(), allow_if([](int32_t first) { return first < 0; }));
}

Masks::PlainText Masks::plain_text_behind(State state) {
  PlainText out;
  if (takes_plain_text(state)) {
    out.next = plain_next_.at(state);
    return out;
  }
  std::array<State, 256> behind{};  // kDeadState too where no plain text is taken
  bool is_first = true;
  for (int byte = 0; byte < 256 && out.others.count() <= kMaxOtherBytes; ++byte) {
    const auto at = static_cast<std::size_t>(byte);
    const uint8_t alike = alike_[at];
    // `alike` is the first of its class, so it has been computed already.
    if (alike < byte) {
      behind[at] = behind[alike];
    } else {
      const State next = behind_character(state, static_cast<uint8_t>(byte));
      behind[at] = next != kDeadState && takes_plain_text(next) ? next : kDeadState;
    }
    // No plain token begins with it, so where it leads to does not matter.
    if (lead_of(byte).more < 0 || trie_->beginning_with(static_cast<uint8_t>(byte)).all.empty()) continue;
    if (behind[at] == kDeadState) {
      out.others.set(at);
    } else if (is_first || behind[at] == out.next) {
      out.next = behind[at];
      is_first = false;
    } else {
      out.next = kDeadState;
    }
  }
  return out;
}

// kMaxPlainCharacters steps: no plain token is longer. A state that leads to itself takes any number, which is how it
// mostly ends, at the first step.
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

std::size_t Masks::last_plain_characters(State state) {
  if (takes_plain_text(state)) return 0;
  std::size_t count = 0;
  for (State next = plain_next_.at(state); next != kDeadState; next = plain_next_.at(next)) {
    state = next;
    ++count;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (lead_of(byte).more >= 0 && states_.step(state, static_cast<uint8_t>(byte)) != kDeadState) return 0;
  }
  return count;
}

State Masks::find_plain_next(State state) {
  // A blank stands for all plain characters; the others have to lead to the same state.
  const State wanted = states_.step(state, static_cast<uint8_t>(' '));
  if (wanted == kDeadState) return kDeadState;
  for (int byte = 0x20; byte < 256; ++byte) {
    if (alike_[static_cast<std::size_t>(byte)] != byte || lead_of(byte).more < 0) continue;
    if (behind_character(state, static_cast<uint8_t>(byte)) != wanted) return kDeadState;
  }
  return wanted;
}

State Masks::behind_character(State state, uint8_t byte) {
  const Lead lead = lead_of(byte);
  if (lead.more < 0) return kDeadState;
  const State first = states_.step(state, byte);
  if (lead.more == 0) return first;
  // All characters with this lead byte at once: the set of states behind their bytes. One state at the end means that
  // the grammar treats all of them alike.
  std::vector<State> open{first}, next;
  for (int i = 0; i < lead.more; ++i) {
    next.clear();
    for (const State from : open) {
      for (const uint8_t more : continuations_[i == 0 ? lead.range : 0]) next.push_back(states_.step(from, more));
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    open.swap(next);
  }
  return open.size() == 1 ? open[0] : kDeadState;
}

// kFresh: as if the table were used for the first time; its answer then depends on the text alone.
Status Matcher::read(int32_t token, Memory memory) {
  StateTable& states = masks_->states();
  // Before the token, not behind it: one token adds at most its length in states, and growth up to kGrowth is allowed.
  if (memory == Memory::kFresh || states.full()) {
    state_ = states.keep_only(state_);
    generation_ = states.generation();
  }
  CHECK(state_ >= kDeadState && generation_ == states.generation());  // both callers have made sure of it
  const TokenTrie& trie = masks_->trie();
  if (token < 0 || token >= trie.vocab_size()) {
    return internal_error("token {} is not in the grammar's vocabulary of {}", token, trie.vocab_size());
  }
  const std::string_view bytes = trie.bytes(token);
  // Empty: a token that no grammar allows. A mask has kept it from being sampled, so this is a fault of the caller, or
  // the tokens are not those of this matcher's earlier calls.
  const State next = bytes.empty() ? kDeadState : states.step(state_, bytes);
  if (states.overflown()) return gave_up();
  if (next == kDeadState) {
    return internal_error("token {} does not follow {} tokens of the grammar", token, token_count_);
  }
  state_ = next;
  ++token_count_;
  last_read_ = token;
  return ok_status();
}

// Where a text leads to is not known, so it is read anew.
Status Matcher::gave_up() {
  state_ = -1;
  return error(StatusCode::kTooLarge, "the grammar is too large for its table");
}

Result<TokenMask> Matcher::try_mask(Memory memory, std::span<const int32_t> before, std::optional<int32_t> last,
                                    std::span<const int32_t> end_ids) {
  StateTable& states = masks_->states();
  if (memory == Memory::kFresh) states.clear();
  const std::size_t count = before.size() + (last ? 1 : 0);
  // One token is compared, the last that was read: it finds a retraction that sampled anew from there. Fewer tokens are
  // found by their number.
  const bool other = token_count_ > 0 && token_count_ <= count &&
                     (token_count_ <= before.size() ? before[token_count_ - 1] : *last) != last_read_;
  if (state_ < 0 || generation_ != states.generation() || count < token_count_ || other) {
    state_ = states.start();
    generation_ = states.generation();
    token_count_ = 0;
    if (states.overflown()) return gave_up();
  }
  while (token_count_ < before.size()) RETURN_IF_ERROR(read(before[token_count_], memory));
  if (token_count_ < count) RETURN_IF_ERROR(read(*last, memory));
  if (memory == Memory::kFresh || states.full()) {
    state_ = states.keep_only(state_);
    generation_ = states.generation();
  }
  return mask_here(end_ids);
}

TokenMask Matcher::mask_here(std::span<const int32_t> end_ids) {
  // A copy: the cache's own may be evicted by the next call, and the end tokens do not belong into it.
  TokenMask mask = masks_->of(state_);
  const bool can_end = masks_->states().can_end(state_);
  // Also where a grammar takes their marks, as free text takes all bytes: reasoning does not end with them.
  for (const int32_t id : end_ids) {
    if (can_end) {
      allow(mask, id);
    } else {
      forbid(mask, id);
    }
  }
  return mask;
}

// A table that gave up is cleared before the next mask.
Result<TokenMask> Matcher::mask_behind(int32_t token, std::span<const int32_t> end_ids) {
  const StateTable& states = masks_->states();
  if (state_ < 0 || generation_ != states.generation()) return internal_error("no mask was made before this one");
  RETURN_IF_ERROR(read(token, Memory::kShared));
  TokenMask mask = mask_here(end_ids);
  if (states.overflown()) return error(StatusCode::kTooLarge, "the grammar is too large to look ahead");
  return mask;
}

Result<TokenMask> Matcher::mask(std::span<const int32_t> before, std::optional<int32_t> last,
                                std::span<const int32_t> end_ids) {
  StateTable& states = masks_->states();
  Result<TokenMask> mask = try_mask(Memory::kShared, before, last, end_ids);
  if (!states.overflown()) return mask;
  // A shared table may have overflown because of what others had left in it. With a fresh one the answer depends on
  // this text alone, so that the same request never fails for another's sake.
  mask = try_mask(Memory::kFresh, before, last, end_ids);
  if (!states.overflown()) return mask;
  // The request fails; those that share the grammar begin with an empty table and read their texts again.
  states.clear();
  return invalid_argument("the grammar is too ambiguous: over {} positions at one place of a text, or {} behind it",
                          kMaxPositions, kGrowth * kMaxKeptPositions);
}

}  // namespace millrace::grammar
