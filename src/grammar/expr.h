// Expr: what the parsers of regular expressions, JSON Schema and EBNF produce, and what Grammar::compile() lowers: a
// tree of sequences, alternatives and repetitions over characters, and references to rules. The language of an Expr is
// a set of byte strings.
//
// Owner: shared_ptr; subtrees are shared. Thread safety: immutable values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::grammar {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;
inline constexpr int kUnbounded = -1;  // of Repeat's most

// A set of Unicode scalar values: sorted, disjoint ranges, both ends included. Surrogates are never members.
class CharSet {
 public:
  struct Range {
    uint32_t low = 0;
    uint32_t high = 0;
    bool operator==(const Range&) const = default;
  };

  CharSet() = default;
  CharSet(uint32_t low, uint32_t high) { add(low, high); }
  static CharSet any() { return {0, kMaxCodePoint}; }
  static CharSet of(std::string_view ascii);

  void add(uint32_t low, uint32_t high);
  void add(const CharSet& other);
  CharSet complement() const;
  CharSet minus(const CharSet& other) const;
  CharSet intersect(const CharSet& other) const;
  bool contains(uint32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// Levels of a tree. Those who walk one, and its end, recurse once for each.
inline constexpr int kMaxExprHeight = 4096;

struct Expr;
using ExprPtr = std::shared_ptr<const Expr>;

struct Expr {
  enum class Kind : uint8_t {
    kEmpty,    // the empty string
    kNever,    // no string at all
    kText,     // the bytes of `text`
    kChars,    // one character of `chars`, in UTF-8
    kByte,     // one byte from `low` to `high`
    kSeq,      // `parts`, one behind the other
    kAlt,      // one of `parts`
    kRepeat,   // parts[0], `least` to `most` times
    kRule,     // rule number `rule` of the grammar
    kTick,     // the empty string; adds one to the count of the rule that it stands in (grammar.h, Count)
    kTooDeep,  // a tree over kMaxExprHeight, which Grammar::compile() refuses
  };
  Kind kind = Kind::kEmpty;
  std::string text;
  CharSet chars;
  std::vector<ExprPtr> parts;
  int least = 0;
  int most = kUnbounded;
  int rule = 0;
  uint8_t low = 0;
  uint8_t high = 0;
  int height = 1;
};

ExprPtr empty();
ExprPtr never();
ExprPtr text(std::string bytes);
ExprPtr chars(CharSet set);
ExprPtr byte_range(uint8_t low, uint8_t high);
ExprPtr seq(std::vector<ExprPtr> parts);  // never() where a part is never
ExprPtr alt(std::vector<ExprPtr> parts);  // without the parts that are never
ExprPtr repeat(ExprPtr part, int least, int most);
ExprPtr optional(ExprPtr part);
ExprPtr rule(int number);
ExprPtr tick();

// UTF-8 of a scalar value.
std::string utf8(uint32_t c);

}  // namespace millrace::grammar
