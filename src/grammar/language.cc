#include "grammar/language.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "grammar/state_table.h"

namespace millrace::grammar {
namespace {

// Of a SchemaWork.
constexpr std::size_t kStateSteps = 5, kPositionSteps = 1;

Status too_large() {
  return error(StatusCode::kTooLarge, "a pattern or length needs more than {} states; wanted a simpler one",
               kMaxLanguageStates);
}

}  // namespace

int32_t Language::State::next(uint8_t byte) const {
  // The last run of each state ends with byte 255 (the header).
  const auto run = std::find_if(runs.begin(), runs.end(), [&](const Run& one) { return one.last >= byte; });
  CHECK(run != runs.end());
  return run->next;
}

void Language::State::add(uint8_t last, int32_t to) {
  // Neighbours that lead to the same state become one run.
  CHECK(runs.empty() || runs.back().last < last);
  if (!runs.empty() && runs.back().next == to) {
    runs.back().last = last;
  } else {
    runs.push_back({last, to});
  }
}

Result<Language> Language::of(const ExprPtr& expr, SchemaWork& work) {
  CHECK(expr != nullptr);
  if (expr->kind == Expr::Kind::kNever) {
    Language out;
    // One state that leads to itself and accepts nothing: Grammar::compile() refuses a grammar without texts.
    out.states_.push_back({{{255, 0}}, false});
    return out;
  }
  ASSIGN_OR_RETURN(const auto grammar, Grammar::compile({{expr}, {"a language"}, {}}));
  StateTable table(grammar);
  return determinized(*grammar, table, table.start(), std::nullopt, work);
}

// `after` stands nowhere inside of the texts, so it marks their end: a text is accepted where this byte would complete
// it.
Result<Language> Language::between(const std::shared_ptr<const Grammar>& grammar, std::string_view before, char after,
                                   SchemaWork& work) {
  StateTable table(grammar);
  return determinized(*grammar, table, table.step(table.start(), before), static_cast<uint8_t>(after), work);
}

// A text ends where the table's may, or, with `after`, where this byte would end it.
Result<Language> Language::determinized(const Grammar& grammar, StateTable& table, int32_t start,
                                        std::optional<uint8_t> after, SchemaWork& work) {
  Language out;
  std::unordered_map<grammar::State, int32_t> numbers;
  std::vector<grammar::State> open;
  const auto number_of = [&](grammar::State state) {
    const auto [known, added] = numbers.try_emplace(state, static_cast<int32_t>(open.size()));
    if (added) open.push_back(state);
    return known->second;
  };
  // The subset construction, breadth first: `open` is the list of states as they get their numbers, and the table has
  // done the work for each. The dead state is one of them, since a complete automaton has a transition for each byte.
  number_of(start);
  std::size_t positions = 0;
  for (std::size_t i = 0; i < open.size(); ++i) {
    // The number of states alone does not bound the time: a state has up to kMaxPositions.
    const std::size_t here = table.position_count(open[i]) * static_cast<std::size_t>(grammar.class_count());
    positions += here;
    if (open.size() > kMaxLanguageStates || positions > kMaxLanguageWork || table.overflown()) return too_large();
    RETURN_IF_ERROR(work.spend(kStateSteps + here * kPositionSteps));
    const auto step = [&](std::size_t byte) {
      return open[i] == kDeadState ? kDeadState : table.step(open[i], static_cast<uint8_t>(byte));
    };
    State state;
    state.accepts = after ? table.can_end(step(*after)) : table.can_end(open[i]);
    int32_t next = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      // One look-up for each class instead of for each byte. The byte `after` goes to the dead state by itself, so the
      // one behind it is looked up anew.
      const bool same = byte > 0 && grammar.byte_class(static_cast<uint8_t>(byte)) ==
                                        grammar.byte_class(static_cast<uint8_t>(byte - 1));
      const bool end = after && byte == *after, behind_end = after && byte - 1 == *after;
      if (!same || end || behind_end) next = number_of(end ? kDeadState : step(byte));
      state.add(static_cast<uint8_t>(byte), next);
    }
    out.states_.push_back(std::move(state));
  }
  return out;
}

Language Language::of_automaton(std::size_t count, FunctionRef<std::size_t(std::size_t, uint8_t)> next,
                                FunctionRef<bool(std::size_t)> accepts) {
  CHECK(count > 0);
  Language out;
  out.states_.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      out.states_[i].add(static_cast<uint8_t>(byte), static_cast<int32_t>(next(i, static_cast<uint8_t>(byte))));
    }
    out.states_[i].accepts = accepts(i);
  }
  return out;
}

template <typename Accepts>
Result<Language> Language::product(const Language& a, const Language& b, SchemaWork& work, Accepts accepts) {
  Language out;
  std::unordered_map<uint64_t, int32_t> numbers;
  std::vector<std::pair<int32_t, int32_t>> open;
  const auto number_of = [&](std::pair<int32_t, int32_t> state) {
    const uint64_t key = static_cast<uint64_t>(state.first) << 32 | static_cast<uint32_t>(state.second);
    const auto [known, added] = numbers.try_emplace(key, static_cast<int32_t>(open.size()));
    if (added) open.push_back(state);
    return known->second;
  };
  number_of({0, 0});
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open.size() > kMaxLanguageStates) return too_large();
    const State& one = a.states_[static_cast<std::size_t>(open[i].first)];
    const State& other = b.states_[static_cast<std::size_t>(open[i].second)];
    RETURN_IF_ERROR(work.spend(kStateSteps + one.runs.size() + other.runs.size()));
    State state;
    state.accepts = accepts(one.accepts, other.accepts);
    // Both lists of runs cover 0 to 255, so they end together; each step takes the shorter run.
    for (std::size_t j = 0, k = 0; j < one.runs.size();) {
      CHECK(k < other.runs.size());
      const Run x = one.runs[j], y = other.runs[k];
      state.add(std::min(x.last, y.last), number_of({x.next, y.next}));
      if (x.last <= y.last) ++j;
      if (y.last <= x.last) ++k;
    }
    out.states_.push_back(std::move(state));
  }
  return out;
}

Result<Language> Language::both(const Language& a, const Language& b, SchemaWork& work) {
  return product(a, b, work, [](bool one, bool other) { return one && other; });
}

Result<Language> Language::minus(const Language& a, const Language& b, SchemaWork& work) {
  return product(a, b, work, [](bool one, bool other) { return one && !other; });
}

bool Language::accepts(std::string_view text) const {
  CHECK(!states_.empty());
  std::size_t state = 0;
  for (const char byte : text) state = static_cast<std::size_t>(states_[state].next(static_cast<uint8_t>(byte)));
  return states_[state].accepts;
}

// Backwards from what accepts, over the reversed edges.
std::vector<bool> Language::alive() const {
  std::vector<std::vector<int32_t>> before(states_.size());
  for (std::size_t i = 0; i < states_.size(); ++i) {
    for (const Run& run : states_[i].runs)
      before[static_cast<std::size_t>(run.next)].push_back(static_cast<int32_t>(i));
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
    // All numbers first, since states refer to each other; the bodies are filled in below.
    rules.bodies.push_back(never());
    rules.names.push_back(name);
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!used[i]) continue;
    std::vector<ExprPtr> parts;
    if (states_[i].accepts) parts.push_back(grammar::empty());
    std::size_t low = 0;
    for (const Run& run : states_[i].runs) {
      const auto next = static_cast<std::size_t>(run.next);
      // Right-linear: the call is the last of its sequence, so it needs no frame (state_behind_open()), and a text of
      // any length is read without a growing stack.
      if (used[next]) parts.push_back(seq({byte_range(static_cast<uint8_t>(low), run.last), rule(numbers[next])}));
      low = std::size_t{run.last} + 1;
    }
    rules.bodies[static_cast<std::size_t>(numbers[i])] = alt(std::move(parts));
  }
  return rule(numbers[0]);
}

}  // namespace millrace::grammar
