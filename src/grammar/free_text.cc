#include "grammar/free_text.h"

#include <array>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/status.h"

namespace millrace::grammar {
namespace {

constexpr int kNoPattern = -1;

struct AutomatonState {
  std::array<int, 256> next{};  // the state behind each byte
  int pattern = kNoPattern;     // that is complete here
  int fallback = 0;             // the state of the longest proper suffix
};

class Automaton {
 public:
  explicit Automaton(const std::vector<std::string>& patterns) : states_(1) {
    for (std::size_t i = 0; i < patterns.size(); ++i) add(patterns[i], static_cast<int>(i));
    link();
  }
  const std::vector<AutomatonState>& states() const { return states_; }

 private:
  AutomatonState& at(int state) { return states_[static_cast<std::size_t>(state)]; }

  void add(const std::string& pattern, int number) {
    CHECK(!pattern.empty());
    int state = 0;
    for (const char c : pattern) {
      const auto byte = static_cast<uint8_t>(c);
      if (at(state).next[byte] == 0) {
        const int added = static_cast<int>(states_.size());
        at(state).next[byte] = added;
        states_.emplace_back();
      }
      state = at(state).next[byte];
    }
    if (at(state).pattern == kNoPattern) at(state).pattern = number;
  }

  // Breadth first: the fallback of a state is shorter than the state, so its row is complete.
  void link() {
    std::vector<int> open{0};
    for (std::size_t i = 0; i < open.size(); ++i) {
      const int state = open[i];
      for (std::size_t byte = 0; byte < 256; ++byte) {
        const int child = at(state).next[byte];
        const int other = state == 0 ? 0 : at(at(state).fallback).next[byte];
        if (child == 0) {
          at(state).next[byte] = other;
          continue;
        }
        at(child).fallback = other;
        if (at(child).pattern == kNoPattern) at(child).pattern = at(other).pattern;
        open.push_back(child);
      }
    }
  }

  std::vector<AutomatonState> states_;
};

// Copies of subtrees that are shared stay shared.
class Shifter {
 public:
  explicit Shifter(int by) : by_(by) {}

  ExprPtr shift(const ExprPtr& expr) {
    if (expr->kind != Expr::Kind::kRule && expr->parts.empty()) return expr;
    ExprPtr& known = known_[expr.get()];
    if (known) return known;
    Expr copy = *expr;
    if (copy.kind == Expr::Kind::kRule) copy.rule += by_;
    for (ExprPtr& part : copy.parts) part = shift(part);
    const auto made = std::make_shared<const Expr>(std::move(copy));
    return known_[expr.get()] = made;  // `known` may have moved
  }

 private:
  const int by_;
  std::unordered_map<const Expr*, ExprPtr> known_;
};

}  // namespace

int add_free_text(Rules& rules, const std::vector<std::string>& patterns, BehindPattern behind, FreeTextEnd end) {
  const Automaton automaton(patterns);
  const int start = static_cast<int>(rules.bodies.size());
  for (std::size_t i = 0; i < automaton.states().size(); ++i) {
    rules.bodies.push_back(empty());
    rules.names.push_back("text");
  }
  for (std::size_t i = 0; i < automaton.states().size(); ++i) {
    const AutomatonState& state = automaton.states()[i];
    std::vector<ExprPtr> ways;
    if (end == FreeTextEnd::kAnywhere) ways.push_back(empty());
    for (std::size_t low = 0, high = 0; low < 256; low = high) {
      for (high = low; high < 256 && state.next[high] == state.next[low];) ++high;
      const int next = state.next[low];
      const int pattern = automaton.states()[static_cast<std::size_t>(next)].pattern;
      const ExprPtr bytes = byte_range(static_cast<uint8_t>(low), static_cast<uint8_t>(high - 1));
      ways.push_back(
          seq({bytes, pattern == kNoPattern ? rule(start + next) : behind(static_cast<std::size_t>(pattern), start)}));
    }
    rules.bodies[static_cast<std::size_t>(start) + i] = alt(std::move(ways));
  }
  return start;
}

int append_rules(Rules& rules, const Rules& others) {
  const int first = static_cast<int>(rules.bodies.size());
  Shifter shifter(first);
  for (const ExprPtr& body : others.bodies) rules.bodies.push_back(shifter.shift(body));
  rules.names.insert(rules.names.end(), others.names.begin(), others.names.end());
  for (const auto& [rule, count] : others.counts) rules.counts[first + rule] = count;
  return first;
}

}  // namespace millrace::grammar
