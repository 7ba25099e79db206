#include "grammar/state_table.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace millrace::grammar {
namespace {

constexpr int32_t kNoFrame = 0;

}  // namespace

StateTable::StateTable(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
  CHECK(grammar_ != nullptr);
  clear();
}

void StateTable::clear() {
  states_.assign(1, {});  // the dead one
  transitions_.assign(static_cast<std::size_t>(grammar_->class_count()), kDeadState);
  by_positions_.clear();
  frames_.assign(1, {});
  by_frame_.clear();
  start_ = -1;
  position_count_ = 0;
  overflown_ = false;
  // Holders of a state compare it before they use theirs (Matcher).
  ++generation_;
}

// Positions refer to frames, and frames to those below, so only what the state reaches moves, from the lowest frame up.
State StateTable::keep_only(State state) {
  CHECK(state >= 0 && std::cmp_less(state, states_.size()));  // not one of an earlier generation
  Entry entry = std::move(states_[static_cast<std::size_t>(state)]);
  const std::vector<Frame> old = std::move(frames_);
  clear();
  std::unordered_map<int32_t, int32_t> moved{{kNoFrame, kNoFrame}};
  std::vector<int32_t> chain;  // of the frames below, not yet moved
  for (Position& p : entry.positions) {
    for (int32_t frame = p.frame; !moved.contains(frame); frame = old[static_cast<std::size_t>(frame)].below) {
      chain.push_back(frame);
    }
    for (; !chain.empty(); chain.pop_back()) {
      const Frame& frame = old[static_cast<std::size_t>(chain.back())];
      moved[chain.back()] = frame_of({frame.node, moved[frame.below], frame.counted, frame.ticks});
    }
    p.frame = moved[p.frame];
  }
  if (state == kDeadState) return kDeadState;
  found_ = std::move(entry.positions);
  return number_of_found(entry.can_end);
}

std::size_t StateTable::memory_bytes() const {
  constexpr std::size_t kEntryBytes = sizeof(Entry) + 4 * sizeof(void*);  // with its place in by_positions_
  constexpr std::size_t kFrameBytes = sizeof(Frame) + 6 * sizeof(void*);
  return states_.size() * kEntryBytes + position_count_ * sizeof(Position) + transitions_.size() * sizeof(State) +
         frames_.size() * kFrameBytes;
}

State StateTable::start() {
  if (start_ < 0) {
    open_.assign(1, {grammar_->start(0), kNoFrame});
    start_ = state_behind_open();
  }
  return start_;
}

State StateTable::step(State state, std::string_view bytes) {
  for (const char byte : bytes) {
    if (state == kDeadState) break;
    state = step(state, static_cast<uint8_t>(byte));
  }
  return state;
}

State StateTable::find_step(State state, uint8_t byte) {
  CHECK(state > kDeadState && std::cmp_less(state, states_.size()));  // all steps of the dead state are known
  open_.clear();
  for (const Position& p : states_[static_cast<std::size_t>(state)].positions) {
    const Grammar::Node& node = grammar_->node(p.node);
    if (node.low <= byte && byte <= node.high) open_.push_back({node.next, p.frame});
  }
  const State next = open_.empty() ? kDeadState : state_behind_open();
  // For all bytes of the class: no position distinguishes them. A dead state that an overflow gave is noted too; it is
  // gone with the table, which is cleared then.
  return transitions_[row(state) + grammar_->byte_class(byte)] = next;
}

// A new round makes all slots free without touching them: this is called for each transition that is searched.
void StateTable::Met::clear() {
  size_ = 0;
  if (++round_ != 0) return;
  slots_.assign(slots_.size(), {});  // rounds begin anew
  round_ = 1;
}

bool StateTable::Met::insert(Position p) {
  // At most half full, so that probing is short.
  if (2 * size_ >= slots_.size()) {
    std::vector<Slot> larger(2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.round == round_) insert_into(larger, slot.position);
    }
    slots_ = std::move(larger);
  }
  const bool is_new = insert_into(slots_, p);
  if (is_new) ++size_;
  return is_new;
}

bool StateTable::Met::insert_into(std::vector<Slot>& slots, Position p) const {
  const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(p.node)) << 32 | static_cast<uint32_t>(p.frame);
  const uint64_t hash = key * 0x9E3779B97F4A7C15u;
  for (std::size_t at = hash >> 32;; ++at) {
    Slot& slot = slots[at & (slots.size() - 1)];
    if (slot.round != round_) {
      slot = {p, round_};
      return true;
    }
    if (slot.position == p) return false;
  }
}

std::size_t StateTable::FrameHash::operator()(const Frame& frame) const {
  uint64_t hash = static_cast<uint64_t>(static_cast<uint32_t>(frame.node)) << 32 | static_cast<uint32_t>(frame.below);
  hash = hash * 0x9E3779B97F4A7C15u ^ static_cast<uint32_t>(frame.counted);
  hash = (hash ^ hash >> 29) * 0xBF58476D1CE4E5B9u ^ static_cast<uint32_t>(frame.ticks);
  return static_cast<std::size_t>((hash ^ hash >> 32) * 0x94D049BB133111EBu);
}

// Equal frames are one, so that stacks share their lower parts, and two positions with equal stacks are equal numbers.
// `depth` follows from `below`.
int32_t StateTable::frame_of(Frame frame) {
  CHECK(std::cmp_less(frame.below, frames_.size()));
  frame.depth = frames_[static_cast<std::size_t>(frame.below)].depth + 1;
  const auto [known, added] = by_frame_.try_emplace(frame, static_cast<int32_t>(frames_.size()));
  if (added) frames_.push_back(frame);
  return known->second;
}

std::optional<int32_t> StateTable::tick(int32_t frame) {
  Frame one = frames_[static_cast<std::size_t>(frame)];
  CHECK(one.counted >= 0);  // a tick stands in a counted rule
  const Count& count = *grammar_->count(one.counted);
  if (count.most != kUnbounded && one.ticks >= count.most) return std::nullopt;
  // Where any number may follow, counting stops at the least: otherwise each character of a string would be a state
  // of its own.
  if (count.most != kUnbounded || one.ticks < count.least) ++one.ticks;
  return frame_of(one);
}

bool StateTable::can_keep_count(int32_t frame, int32_t node) const {
  const Frame& one = frames_[static_cast<std::size_t>(frame)];
  const Count &count = *grammar_->count(one.counted), more = grammar_->ticks_to_end(node);
  // A position that cannot keep its count any more is dropped at once, so that no state is alive without a way to the
  // end: a mask would otherwise allow tokens behind which nothing can follow.
  return (count.most == kUnbounded || one.ticks + more.least <= count.most) &&
         (more.most == kUnbounded || one.ticks + more.most >= count.least);
}

// Follows everything that reads no byte. A call whose return is the caller's own end needs no frame: the callee then
// returns to the caller's caller, and a list of any length is read without a growing stack.
State StateTable::state_behind_open() {
  using Kind = Grammar::Node::Kind;
  bool can_end = false;
  found_.clear();
  met_.clear();
  while (!open_.empty()) {
    // found_ is incomplete then, and no state is made of it.
    if (met_.size() >= kMaxPositions || overflown_) {
      overflown_ = true;
      return kDeadState;
    }
    const Position p = open_.back();
    open_.pop_back();
    // Loops without a byte end here, as do the many ways to one position.
    if (!met_.insert(p)) continue;
    const Grammar::Node& node = grammar_->node(p.node);
    switch (node.kind) {
      case Kind::kBytes:
        found_.push_back(p);
        break;
      case Kind::kSplit: {
        const bool counted = frames_[static_cast<std::size_t>(p.frame)].counted >= 0;
        for (const int32_t next : {node.next, node.other}) {
          if (!counted || can_keep_count(p.frame, next)) open_.push_back({next, p.frame});
        }
        break;
      }
      case Kind::kCall: {
        const bool counted = grammar_->count(node.other) != nullptr;
        const bool last = grammar_->node(node.next).kind == Kind::kEnd && !counted;
        // The position is dropped: the texts that nest deeper are not accepted, and the others are.
        if (!last && frames_[static_cast<std::size_t>(p.frame)].depth >= kMaxCallDepth) break;
        const int32_t frame = last ? p.frame : frame_of({node.next, p.frame, counted ? node.other : -1});
        const int32_t start = grammar_->start(node.other);
        if (!counted || can_keep_count(frame, start)) open_.push_back({start, frame});
        break;
      }
      case Kind::kTick:
        if (const auto frame = tick(p.frame); frame && can_keep_count(*frame, node.next)) {
          open_.push_back({node.next, *frame});
        }
        break;
      case Kind::kEnd: {
        if (p.frame == kNoFrame) {
          can_end = true;
        } else {
          const Frame& frame = frames_[static_cast<std::size_t>(p.frame)];
          const bool enough = frame.counted < 0 || frame.ticks >= grammar_->count(frame.counted)->least;
          // The stack is in the position, so returning is a move to the frame below; other positions keep theirs.
          if (enough) open_.push_back({frame.node, frame.below});
        }
        break;
      }
      case Kind::kDead:
        break;
    }
  }
  return found_.empty() && !can_end ? kDeadState : number_of_found(can_end);
}

State StateTable::number_of_found(bool can_end) {
  CHECK(!overflown_);  // the search would have been cut short, and the set incomplete
  // A set: whichever way it was found, it is one state.
  std::sort(found_.begin(), found_.end());
  uint64_t hash = can_end ? 1 : 0;
  for (const Position& p : found_) {
    hash = (hash ^ static_cast<uint32_t>(p.node)) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ static_cast<uint32_t>(p.frame) ^ hash >> 29) * 0xBF58476D1CE4E5B9u;
  }
  const auto [first, last] = by_positions_.equal_range(hash);
  for (auto known = first; known != last; ++known) {
    const Entry& other = states_[static_cast<std::size_t>(known->second)];
    if (other.can_end == can_end && other.positions == found_) return known->second;
  }
  position_count_ += found_.size();
  overflown_ = states_.size() >= kGrowth * kMaxStates || position_count_ >= kGrowth * kMaxKeptPositions;
  const State state = static_cast<State>(states_.size());
  by_positions_.emplace(hash, state);
  states_.push_back({found_, can_end});
  transitions_.resize(transitions_.size() + static_cast<std::size_t>(grammar_->class_count()), -1);
  CHECK(transitions_.size() == row(state) + static_cast<std::size_t>(grammar_->class_count()));
  return state;
}

}  // namespace millrace::grammar
