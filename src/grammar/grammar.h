// Grammar: a compiled context-free grammar over bytes, what a request's output must belong to. A nondeterministic
// automaton for each rule (Thompson, "Regular expression search algorithm", 1968), whose edges are byte ranges, and
// calls of other rules, as in a recursive transition network.
//
// Rule 0 is where a text begins. Left recursion is refused: no rule may call itself before it has read a byte.
//
// Owner: shared_ptr; shared by the requests with the same source. Thread safety: immutable.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/expr.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxSourceBytes = 256 << 10;  // of a schema, an expression or a grammar
inline constexpr int kMaxNesting = 64;                     // of schemas in schemas, groups in groups
inline constexpr std::size_t kMaxNodes = 400'000;          // of the automaton: about 8 MB

// How many ticks a rule's texts have: the characters of a string, the items of an array. A counted rule costs a few
// nodes whatever the bounds are; the count lives in the frame of the rule's call (state_table.h). Ticks count for the
// rule that they stand in, not for rules that it calls. Rule 0 is never counted.
struct Count {
  int least = 0;
  int most = kUnbounded;
};

// The rules of a grammar as a parser produces them, by number; the names appear in messages.
struct Rules {
  std::vector<ExprPtr> bodies;
  std::vector<std::string> names;
  std::map<int, Count> counts;  // of the rules that have one
};

class Grammar {
 public:
  struct Node {
    enum class Kind : uint8_t {
      kBytes,  // one byte from `low` to `high`, then `next`
      kSplit,  // `next` or `other`, without a byte
      kCall,   // rule `other`, then `next`
      kEnd,    // of the rule
      kTick,   // one more for the rule's count, then `next`
      kDead,   // no way on
    };
    Kind kind = Kind::kDead;
    uint8_t low = 0;
    uint8_t high = 0;
    int32_t next = 0;
    int32_t other = 0;
  };

  // kInvalidArgument: left recursion, or rule 0 has no string; kTooLarge: more than kMaxNodes.
  static Result<std::shared_ptr<const Grammar>> compile(const Rules& rules);

  const Node& node(int32_t id) const { return nodes_[static_cast<std::size_t>(id)]; }
  int32_t start(int32_t rule) const { return starts_[static_cast<std::size_t>(rule)]; }
  // Of a counted rule; nullptr: the rule has no count.
  const Count* count(int32_t rule) const {
    const Count& count = counts_[static_cast<std::size_t>(rule)];
    return count.least < 0 ? nullptr : &count;
  }
  // The fewest ticks from a node of a counted rule to the rule's end, and the most (kUnbounded).
  Count ticks_to_end(int32_t node) const {
    const auto at = static_cast<std::size_t>(node);
    return at < ticks_.size() ? ticks_[at] : Count{};
  }
  // Bytes between which no node distinguishes are of one class, so that a state's transitions are few.
  uint8_t byte_class(uint8_t byte) const { return classes_[byte]; }
  int class_count() const { return class_count_; }
  std::size_t memory_bytes() const {
    return sizeof(*this) + nodes_.size() * sizeof(Node) + ticks_.size() * sizeof(Count);
  }

 private:
  friend class GrammarBuilder;
  Grammar() = default;

  std::vector<Node> nodes_;
  std::vector<int32_t> starts_;  // by rule
  std::vector<Count> counts_;    // by rule; least < 0: none
  std::vector<Count> ticks_;     // by node; empty without counted rules
  std::array<uint8_t, 256> classes_{};
  int class_count_ = 0;
};

}  // namespace millrace::grammar
