// StateTable: the deterministic automaton of a grammar, made as it is used. A state is the set of positions that the
// nondeterministic one may have reached, each with the rules to return to; equal sets are one state, so a transition is
// found once and then looked up.
//
// What the states hold is bounded: over kMaxStates or kMaxKeptPositions the table is cleared (`generation` changes),
// and a holder of a state reads its text once more. That never changes which texts are accepted. Between two such
// moments a table may grow to kGrowth times as much; then it gives up (`overflown`), and its answers are of no use
// until it is cleared. Where that happens to a table that held one state before, the grammar is too ambiguous behind
// that state, no matter what else uses it.
//
// Owner: the masks of one grammar in one runner. Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxStates = 16'384;
inline constexpr std::size_t kMaxPositions = 16'384;       // of one state
inline constexpr std::size_t kMaxKeptPositions = 1 << 18;  // of all states: 2 MB
inline constexpr std::size_t kGrowth = 2;
inline constexpr int32_t kMaxCallDepth = 1'024;  // rules in rules; a deeper text is not accepted

using State = int32_t;
inline constexpr State kDeadState = 0;

class StateTable {
 public:
  explicit StateTable(std::shared_ptr<const Grammar> grammar);

  State start();
  // The state behind one byte; kDeadState: no text of the grammar goes on so.
  State step(State state, uint8_t byte) {
    const State known = transitions_[row(state) + grammar_->byte_class(byte)];
    return known >= 0 ? known : find_step(state, byte);
  }
  State step(State state, std::string_view bytes);
  // Whether the text read so far is one of the grammar's.
  bool can_end(State state) const { return states_[static_cast<std::size_t>(state)].can_end; }
  std::size_t state_count() const { return states_.size(); }
  std::size_t position_count(State state) const { return states_[static_cast<std::size_t>(state)].positions.size(); }
  // Changes whenever states become invalid.
  uint64_t generation() const { return generation_; }
  void clear();
  // Forgets all but one state, whose new number it returns.
  State keep_only(State state);
  bool full() const { return states_.size() > kMaxStates || position_count_ > kMaxKeptPositions || overflown_; }
  bool overflown() const { return overflown_; }
  std::size_t memory_bytes() const;  // about

 private:
  struct Position {
    int32_t node = 0;   // of kind kBytes
    int32_t frame = 0;  // the rules to return to, innermost first, with their counts
    auto operator<=>(const Position&) const = default;
  };
  struct Frame {
    int32_t node = 0;  // where the caller goes on
    int32_t below = 0;
    int32_t counted = -1;  // the rule that was called, if it has a count
    int32_t ticks = 0;     // as far as they matter: no more than one needs where any number may follow
    int32_t depth = 0;     // not part of what makes two frames the same
    bool operator==(const Frame& o) const {
      return node == o.node && below == o.below && counted == o.counted && ticks == o.ticks;
    }
  };
  struct FrameHash {
    std::size_t operator()(const Frame& frame) const;
  };
  struct Entry {
    std::vector<Position> positions;  // sorted
    bool can_end = false;
  };

  std::size_t row(State state) const {
    return static_cast<std::size_t>(state) * static_cast<std::size_t>(grammar_->class_count());
  }
  // Positions that a search has met, in an open hash table that is emptied by a new round. Thread safety: none.
  class Met {
   public:
    void clear();
    std::size_t size() const { return size_; }
    bool insert(Position p);  // false: it was there

   private:
    struct Slot {
      Position position;
      uint32_t round = 0;
    };
    bool insert_into(std::vector<Slot>& slots, Position p) const;
    std::vector<Slot> slots_ = std::vector<Slot>(64);
    uint32_t round_ = 1;
    std::size_t size_ = 0;
  };

  State find_step(State state, uint8_t byte);
  State state_behind_open();
  State number_of_found(bool can_end);
  int32_t frame_of(Frame frame);
  // One more for the count of the rule whose frame this is; nullopt: more than it may have.
  std::optional<int32_t> tick(int32_t frame);
  // Whether the rule's count can be kept on a way over this node.
  bool can_keep_count(int32_t frame, int32_t node) const;

  const std::shared_ptr<const Grammar> grammar_;
  std::vector<Entry> states_;
  std::vector<State> transitions_;  // by state and class; -1: not known yet
  std::unordered_multimap<uint64_t, State> by_positions_;
  std::vector<Frame> frames_;  // 0: none
  std::unordered_map<Frame, int32_t, FrameHash> by_frame_;
  State start_ = -1;
  uint64_t generation_ = 0;
  std::size_t position_count_ = 0;  // of all states
  // Of the state that is searched for: positions from which to go on, those met, and those that read a byte.
  std::vector<Position> open_, found_;
  Met met_;
  bool overflown_ = false;
};

}  // namespace millrace::grammar
