#include "grammar/language.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

Status too_large() {
  return error(StatusCode::kTooLarge, "a pattern or length needs more than {} states; wanted a simpler one",
               kMaxLanguageStates);
}

}  // namespace

Result<Language> Language::of(const ExprPtr& expr) {
  Language out;
  if (expr->kind == Expr::Kind::kNever) return out.states_.emplace_back(), out;
  ASSIGN_OR_RETURN(const auto grammar, Grammar::compile({{expr}, {"a language"}}));
  StateTable table(grammar);
  std::unordered_map<grammar::State, int32_t> numbers;
  std::vector<grammar::State> open;
  const auto number_of = [&](grammar::State state) {
    const auto [known, added] = numbers.try_emplace(state, static_cast<int32_t>(open.size()));
    if (added) open.push_back(state);
    return known->second;
  };
  number_of(table.start());
  std::size_t work = 0;
  for (std::size_t i = 0; i < open.size(); ++i) {
    work += table.position_count(open[i]) * static_cast<std::size_t>(grammar->class_count());
    if (open.size() > kMaxLanguageStates || work > kMaxLanguageWork) return too_large();
    State& state = out.states_.emplace_back();
    state.accepts = table.can_end(open[i]);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool same = byte > 0 && grammar->byte_class(static_cast<uint8_t>(byte)) ==
                                        grammar->byte_class(static_cast<uint8_t>(byte - 1));
      state.next[byte] =
          same ? state.next[byte - 1]
               : number_of(open[i] == kDeadState ? kDeadState : table.step(open[i], static_cast<uint8_t>(byte)));
    }
  }
  return out;
}

template <typename Accepts>
Result<Language> Language::product(const Language& a, const Language& b, Accepts accepts) {
  Language out;
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers;
  std::vector<std::pair<int32_t, int32_t>> open;
  const auto number_of = [&](std::pair<int32_t, int32_t> state) {
    const auto [known, added] = numbers.try_emplace(state, static_cast<int32_t>(open.size()));
    if (added) open.push_back(state);
    return known->second;
  };
  number_of({0, 0});
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open.size() > kMaxLanguageStates) return too_large();
    const State& one = a.states_[static_cast<std::size_t>(open[i].first)];
    const State& other = b.states_[static_cast<std::size_t>(open[i].second)];
    State state;
    state.accepts = accepts(one.accepts, other.accepts);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool same = byte > 0 && one.next[byte] == one.next[byte - 1] && other.next[byte] == other.next[byte - 1];
      state.next[byte] = same ? state.next[byte - 1] : number_of({one.next[byte], other.next[byte]});
    }
    out.states_.push_back(state);
  }
  return out;
}

Result<Language> Language::both(const Language& a, const Language& b) {
  return product(a, b, [](bool one, bool other) { return one && other; });
}

Result<Language> Language::minus(const Language& a, const Language& b) {
  return product(a, b, [](bool one, bool other) { return one && !other; });
}

bool Language::accepts(std::string_view text) const {
  std::size_t state = 0;
  for (const char byte : text) state = static_cast<std::size_t>(states_[state].next[static_cast<uint8_t>(byte)]);
  return states_[state].accepts;
}

std::vector<bool> Language::alive() const {
  std::vector<std::vector<int32_t>> before(states_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    int32_t last = -1;
    for (const int32_t next : states_[i].next) {
      if (next != last) before[static_cast<std::size_t>(next)].push_back(static_cast<int32_t>(i));
      last = next;
    }
  }
  std::vector<bool> out(states_.size());
  std::vector<int32_t> open;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].accepts) open.push_back(static_cast<int32_t>(i));
  }
  while (!open.empty()) {
    const auto state = static_cast<std::size_t>(open.back());
    open.pop_back();
    if (out[state]) continue;
    out[state] = true;
    open.insert(open.end(), before[state].begin(), before[state].end());
  }
  return out;
}

bool Language::empty() const { return !alive()[0]; }

ExprPtr Language::to_expr(Rules& rules, const std::string& name) const {
  const std::vector<bool> used = alive();
  if (!used[0]) return never();
  std::vector<int> numbers(states_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!used[i]) continue;
    numbers[i] = static_cast<int>(rules.bodies.size());
    rules.bodies.push_back(never());
    rules.names.push_back(name);
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!used[i]) continue;
    std::vector<ExprPtr> parts;
    if (states_[i].accepts) parts.push_back(grammar::empty());
    for (std::size_t low = 0; low < 256;) {
      std::size_t high = low;
      const auto next = static_cast<std::size_t>(states_[i].next[low]);
      while (high < 255 && states_[i].next[high + 1] == states_[i].next[low]) ++high;
      if (used[next]) {
        parts.push_back(seq({byte_range(static_cast<uint8_t>(low), static_cast<uint8_t>(high)), rule(numbers[next])}));
      }
      low = high + 1;
    }
    rules.bodies[static_cast<std::size_t>(numbers[i])] = alt(std::move(parts));
  }
  return rule(numbers[0]);
}

}  // namespace millrace::grammar
