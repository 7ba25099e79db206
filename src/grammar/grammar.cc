#include "grammar/grammar.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "grammar/utf8_ranges.h"

namespace millrace::grammar {

// Lowers expressions from their end to their start: every node is made when the node behind it is known, so no edge is
// ever patched. A repetition without a bound is the exception: its split comes first.
class GrammarBuilder {
 public:
  using Node = Grammar::Node;
  using Kind = Node::Kind;

  explicit GrammarBuilder(const Rules& rules) : rules_(rules), grammar_(new Grammar) {}

  Result<std::shared_ptr<const Grammar>> build() {
    // Number 0: what stands for "no node" in add() and lower() when the limit is reached, too.
    dead_ = add({.kind = Kind::kDead});
    for (std::size_t i = 0; i < rules_.bodies.size() && !full(); ++i) {
      // Each rule has an end of its own: which frame to return to is known when a text is read (state_table.cc).
      grammar_->starts_.push_back(lower(*rules_.bodies[i], add({.kind = Kind::kEnd})));
      const auto count = rules_.counts.find(static_cast<int>(i));
      grammar_->counts_.push_back(count == rules_.counts.end() ? Count{-1, 0} : count->second);
    }
    if (too_deep_) {
      return error(StatusCode::kTooLarge, "the grammar nests more than {} levels deep; wanted fewer, or shorter lists",
                   kMaxExprHeight);
    }
    if (full()) {
      return error(StatusCode::kTooLarge,
                   "the grammar has more than {} states; wanted fewer: smaller bounds of "
                   "repetitions and lengths, or fewer alternatives",
                   kMaxNodes);
    }
    find_nullable();
    RETURN_IF_ERROR(refuse_left_recursion());
    // Each depends on the other. A rule that cannot keep its count is dead, so calls of it are dead ends; without
    // these, other rules may have fewer ticks. It ends, as each round kills a rule.
    do {
      remove_dead_ends();
      count_ticks();
    } while (remove_impossible_counts());
    CHECK(grammar_->starts_.size() == rules_.bodies.size());
    if (grammar_->starts_[0] == dead_) {
      return invalid_argument("the grammar admits no text; wanted one that some text satisfies");
    }
    find_classes();
    return std::shared_ptr<const Grammar>(std::move(grammar_));
  }

 private:
  bool full() const { return grammar_->nodes_.size() > kMaxNodes; }

  int32_t add(Node node) {
    if (full()) return 0;  // the last of them; build() refuses
    grammar_->nodes_.push_back(node);
    return static_cast<int32_t>(grammar_->nodes_.size() - 1);
  }
  int32_t bytes(uint8_t low, uint8_t high, int32_t next) {
    return add({.kind = Kind::kBytes, .low = low, .high = high, .next = next});
  }
  int32_t split(int32_t next, int32_t other) {
    if (next == other) return next;
    return add({.kind = Kind::kSplit, .next = next, .other = other});
  }

  int32_t lower(const Expr& expr, int32_t next) {
    if (full()) return 0;
    switch (expr.kind) {
      case Expr::Kind::kEmpty:
        return next;
      case Expr::Kind::kNever:
        return dead_;
      // From the last byte to the first, as everything here.
      case Expr::Kind::kText:
        for (auto c = expr.text.rbegin(); c != expr.text.rend(); ++c) {
          next = bytes(static_cast<uint8_t>(*c), static_cast<uint8_t>(*c), next);
        }
        return next;
      case Expr::Kind::kChars:
        return lower_chars(expr.chars, next);
      case Expr::Kind::kByte:
        return bytes(expr.low, expr.high, next);
      case Expr::Kind::kSeq:
        for (auto part = expr.parts.rbegin(); part != expr.parts.rend(); ++part) next = lower(**part, next);
        return next;
      case Expr::Kind::kAlt:
        return lower_alt(expr.parts, next);
      case Expr::Kind::kRepeat:
        return lower_repeat(expr, next);
      case Expr::Kind::kRule:
        CHECK(std::cmp_less(expr.rule, rules_.bodies.size()));
        return add({.kind = Kind::kCall, .next = next, .other = expr.rule});
      case Expr::Kind::kTick:
        return add({.kind = Kind::kTick, .next = next});
      case Expr::Kind::kTooDeep:
        too_deep_ = true;
        return dead_;
    }
    return dead_;
  }

  // `next` is shared by all alternatives: the graph meets again behind them, so its size is the sum of the parts.
  int32_t lower_alt(const std::vector<ExprPtr>& parts, int32_t next) {
    CHECK(!parts.empty());  // alt() makes none of it
    int32_t start = lower(*parts.back(), next);
    for (std::size_t i = parts.size() - 1; i-- > 0;) start = split(lower(*parts[i], next), start);
    return start;
  }

  int32_t lower_repeat(const Expr& expr, int32_t next) {
    CHECK(expr.parts.size() == 1);
    const Expr& part = *expr.parts[0];
    if (expr.most == kUnbounded) {
      const int32_t loop = add({.kind = Kind::kSplit, .next = dead_, .other = next});
      const int32_t body = lower(part, loop);
      if (!full()) grammar_->nodes_[static_cast<std::size_t>(loop)].next = body;
      next = loop;
    } else {
      // x{2,4} is x x (x (x)?)?: each optional part leads to the end by itself. A copy of the part for each repetition,
      // which is why bounds that are large become counted rules (Count).
      const int32_t end = next;
      repeat(expr.most - expr.least, next, [&] { return split(lower(part, next), end); });
    }
    repeat(expr.least, next, [&] { return lower(part, next); });
    return next;
  }

  // A part that adds no node, as (|), is the same again: without a look at that, such repetitions in each other would
  // take as many steps as the product of their bounds, and never be full.
  template <typename Lower>
  void repeat(int times, int32_t& next, Lower lower_once) {
    for (int i = 0; i < times && !full(); ++i) {
      const int32_t before = next;
      next = lower_once();
      if (next == before) return;
    }
  }

  int32_t lower_chars(const CharSet& set, int32_t next) {
    int32_t start = dead_;
    for (const CharSet::Range& range : set.ranges()) {
      for_utf8_ranges(range.low, range.high, [&](std::span<const ByteRange> sequence) {
        int32_t node = next;
        for (std::size_t i = sequence.size(); i-- > 0;) node = bytes(sequence[i].low, sequence[i].high, node);
        // Ranges share no beginnings: a state of the table joins them (subset construction), and only classes of bytes
        // cost.
        start = start == dead_ ? node : split(node, start);
      });
    }
    return start;
  }

  // A node's successors have lower numbers, but for the body of a loop, which is made behind the loop's split: by way
  // of the body there are no fewer ticks, and any number of them where one stands in the body.
  void count_ticks() {
    // ticks_ stays empty then, and ticks_to_end() gives no bounds.
    if (rules_.counts.empty()) return;
    std::vector<Count>& ticks = grammar_->ticks_;
    const std::vector<Node>& nodes = grammar_->nodes_;
    std::vector<int32_t> before(nodes.size() + 1);  // ticks among the nodes with lower numbers
    for (std::size_t i = 0; i < nodes.size(); ++i) before[i + 1] = before[i] + (nodes[i].kind == Kind::kTick ? 1 : 0);
    ticks.assign(nodes.size(), {kNoWay, 0});
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = nodes[i];
      const auto next = static_cast<std::size_t>(node.next), other = static_cast<std::size_t>(node.other);
      if (node.kind == Kind::kEnd) {
        ticks[i] = {0, 0};
        // The split of a loop, whose body is not known yet in this pass; see above.
      } else if (node.kind == Kind::kSplit && next > i) {
        ticks[i] = ticks[other];
        if (nodes[next].kind != Kind::kDead && before[next + 1] > before[i]) ticks[i].most = kUnbounded;
      } else if (node.kind == Kind::kSplit) {
        const Count a = ticks[next], b = ticks[other];
        ticks[i] = {std::min(a.least, b.least), is_more(a.most, b.most) ? a.most : b.most};
      } else if (node.kind == Kind::kCall && nodes[next].kind == Kind::kEnd && rules_.counts.count(node.other) == 0) {
        // Its ticks count as the caller's (state_table.cc, kCall). Of a rule that is lowered later nothing is known.
        const auto start = static_cast<std::size_t>(grammar_->starts_[other]);
        ticks[i] = start < i ? ticks[start] : Count{0, kUnbounded};
      } else if (node.kind != Kind::kDead) {
        const int one = node.kind == Kind::kTick && ticks[next].least < kNoWay ? 1 : 0;
        ticks[i] = {ticks[next].least + one, ticks[next].most == kUnbounded ? kUnbounded : ticks[next].most + one};
      }
    }
  }
  static constexpr int kNoWay = 1 << 30;  // to the end
  static bool is_more(int a, int b) { return b != kUnbounded && (a == kUnbounded || a > b); }

  // Calls `visit` for each node that is reached from `from` past splits, and past the nodes that `passes` admits.
  // visit_ marks the nodes of one search, so that nothing is cleared between the searches, of which there is one for
  // each rule and round.
  template <typename Passes, typename Visit>
  void reach(int32_t from, Passes passes, Visit visit) const {
    std::vector<int32_t> open{from};
    visited_.resize(grammar_->nodes_.size());
    ++visit_;
    while (!open.empty()) {
      const int32_t id = open.back();
      open.pop_back();
      if (std::exchange(visited_[static_cast<std::size_t>(id)], visit_) == visit_) continue;
      const Node& node = grammar_->node(id);
      visit(node);
      if (node.kind == Kind::kSplit) open.push_back(node.other);
      if (node.kind == Kind::kSplit || node.kind == Kind::kTick || passes(node)) open.push_back(node.next);
    }
  }
  // Without a byte: past calls of rules that may be empty.
  template <typename Visit>
  void reach_without_byte(int32_t from, Visit visit) const {
    const auto empty_call = [&](const Node& node) {
      return node.kind == Kind::kCall && nullable_[static_cast<std::size_t>(node.other)];
    };
    reach(from, empty_call, visit);
  }

  void find_nullable() {
    nullable_.assign(rules_.bodies.size(), false);
    // A fixed point: a rule is nullable where it reaches its end past calls of nullable rules alone.
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t i = nullable_.size(); i-- > 0;) {  // rules mostly call later ones
        if (nullable_[i]) continue;
        bool ends = false;
        reach_without_byte(grammar_->starts_[i], [&](const Node& node) { ends = ends || node.kind == Kind::kEnd; });
        if (ends) nullable_[i] = changed = true;
      }
    }
  }

  // A left-recursive rule would push frames without end before it reads a byte (state_behind_open()).
  Status refuse_left_recursion() const {
    std::vector<std::vector<int32_t>> calls(rules_.bodies.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      reach_without_byte(grammar_->starts_[i], [&](const Node& node) {
        if (node.kind == Kind::kCall) calls[i].push_back(node.other);
      });
    }
    // A rule that no remaining rule calls first is no part of a cycle; what is left over in the end is one.
    std::vector<int> callers(calls.size());
    for (const auto& called : calls) {
      for (const int32_t rule : called) ++callers[static_cast<std::size_t>(rule)];
    }
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (callers[i] == 0) open.push_back(i);
    }
    std::size_t done = 0;
    for (; !open.empty(); ++done) {
      const std::size_t rule = open.back();
      open.pop_back();
      for (const int32_t called : calls[rule]) {
        if (--callers[static_cast<std::size_t>(called)] == 0) open.push_back(static_cast<std::size_t>(called));
      }
    }
    if (done == calls.size()) return ok_status();
    const auto first = std::find_if(callers.begin(), callers.end(), [](int count) { return count > 0; });
    return invalid_argument("rule '{}' is left-recursive; wanted a rule that reads a character before it calls itself",
                            rules_.names[static_cast<std::size_t>(first - callers.begin())]);
  }

  // What leads to no end of its rule, or calls a rule without texts, is dead: a text never goes on where it cannot end.
  // Found backwards, from the ends of rules.
  void remove_dead_ends() {
    std::vector<Node>& nodes = grammar_->nodes_;
    const std::size_t count = nodes.size(), rules = rules_.bodies.size();
    // By node, the nodes that lead to it; by rule, the calls of it.
    Lists before(count), calls(rules);
    for (const bool counting : {true, false}) {
      for (std::size_t n = 0; n < count; ++n) {
        const Node& node = nodes[n];
        if (node.kind == Kind::kEnd || node.kind == Kind::kDead) continue;
        before.add(static_cast<std::size_t>(node.next), n, counting);
        if (node.kind == Kind::kSplit) before.add(static_cast<std::size_t>(node.other), n, counting);
        if (node.kind == Kind::kCall) calls.add(static_cast<std::size_t>(node.other), n, counting);
      }
    }
    Lists starts(count);
    for (const bool counting : {true, false}) {
      for (std::size_t i = 0; i < rules; ++i) starts.add(static_cast<std::size_t>(grammar_->starts_[i]), i, counting);
    }
    std::vector<bool> live(count), has_text(rules);
    std::vector<std::size_t> open;
    const auto reach = [&](std::size_t n) {
      const Node& node = nodes[n];
      // A call is live when both the rule has a text and what is behind the call leads to an end: it is asked again
      // when the second of the two becomes known.
      const bool waits = node.kind == Kind::kCall && (!has_text[static_cast<std::size_t>(node.other)] ||
                                                      !live[static_cast<std::size_t>(node.next)]);
      if (waits || live[n] || node.kind == Kind::kDead) return;
      live[n] = true;
      open.push_back(n);
    };
    for (std::size_t n = 0; n < count; ++n) {
      if (nodes[n].kind == Kind::kEnd) reach(n);
    }
    while (!open.empty()) {
      const std::size_t n = open.back();
      open.pop_back();
      for (const std::size_t from : before.of(n)) reach(from);
      for (const std::size_t rule : starts.of(n)) {
        has_text[rule] = true;
        for (const std::size_t call : calls.of(rule)) reach(call);
      }
    }
    for (std::size_t i = 0; i < rules; ++i) {
      if (!has_text[i]) grammar_->starts_[i] = dead_;
    }
    for (std::size_t n = 0; n < count; ++n) {
      // Numbers stay as they are: dead nodes cost memory, and no edge has to be changed.
      if (!live[n]) nodes[n] = {.kind = Kind::kDead};
    }
  }

  // For each of some numbers a list of others, in one array; filled twice in the same way, to count and then to store.
  class Lists {
   public:
    explicit Lists(std::size_t size) : ends_(size + 1) {}
    void add(std::size_t key, std::size_t value, bool counting) {
      if (counting) {
        ++ends_[key];
        ++total_;
        return;
      }
      if (values_.empty()) sum_up();
      CHECK(ends_[key] > 0);  // the second pass adds what the first one counted
      values_[--ends_[key]] = value;
    }
    std::span<const std::size_t> of(std::size_t key) const {
      if (values_.empty()) return {};
      return std::span(values_).subspan(ends_[key], ends_[key + 1] - ends_[key]);
    }

   private:
    void sum_up() {
      values_.resize(total_);
      for (std::size_t i = 1; i < ends_.size(); ++i) ends_[i] += ends_[i - 1];
    }
    std::vector<std::size_t> ends_, values_;
    std::size_t total_ = 0;
  };

  // Counted rules that no text can keep the count of.
  bool remove_impossible_counts() {
    bool removed = false;
    for (std::size_t i = 0; i < rules_.bodies.size(); ++i) {
      const Count* count = grammar_->count(static_cast<int32_t>(i));
      int32_t& start = grammar_->starts_[i];
      if (!count || start == dead_) continue;
      const Count ticks = grammar_->ticks_to_end(start);
      const bool possible = (count->most == kUnbounded || ticks.least <= count->most) &&
                            (ticks.most == kUnbounded || ticks.most >= count->least);
      if (!possible) start = dead_, removed = true;
    }
    return removed;
  }

  void find_classes() {
    // Bytes are of one class where no range begins between them: 257, since a range that ends with 255 begins one
    // behind it.
    std::bitset<257> begins;
    for (const Node& node : grammar_->nodes_) {
      if (node.kind != Kind::kBytes) continue;
      begins.set(node.low);
      begins.set(std::size_t{node.high} + 1);
    }
    int count = 0;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      if (byte > 0 && begins[byte]) ++count;
      grammar_->classes_[byte] = static_cast<uint8_t>(count);
    }
    grammar_->class_count_ = count + 1;
  }

  bool too_deep_ = false;
  const Rules& rules_;
  std::unique_ptr<Grammar> grammar_;
  std::vector<bool> nullable_;
  mutable std::vector<uint32_t> visited_;  // by node: the visit that reached it last
  mutable uint32_t visit_ = 0;
  int32_t dead_ = 0;
};

Result<std::shared_ptr<const Grammar>> Grammar::compile(const Rules& rules) {
  CHECK(!rules.bodies.empty() && rules.bodies.size() == rules.names.size());
  // A count is kept in the frame of the rule's call, which rule 0 does not have.
  CHECK(rules.counts.empty() ||
        (rules.counts.begin()->first > 0 && std::cmp_less(rules.counts.rbegin()->first, rules.bodies.size())));
  return GrammarBuilder(rules).build();
}

}  // namespace millrace::grammar
