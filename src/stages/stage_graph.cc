#include "stages/stage_graph.h"

#include <bit>

#include "base/status.h"

namespace millrace {
namespace {

template <typename Visit>
void each(StageSet set, const Visit& visit) {
  for (; set != 0; set &= set - 1) visit(static_cast<std::size_t>(std::countr_zero(set)));
}

}  // namespace

StageGraph::StageGraph(const std::vector<StageSpec>& stages, const std::string& entry) {
  CHECK(!stages.empty() && stages.size() <= static_cast<std::size_t>(kMaxStages));
  for (const StageSpec& stage : stages) nodes_.push_back({.name = stage.name});
  if (!entry.empty()) entry_ = index_of(entry);
  CHECK(entry_ < size());
  fill_edges(stages);
  fill_reaches();
  for (std::size_t i = 0; i < size(); ++i) {
    if (stages[i].terminal) nodes_[i].must = needed_by(i);
    if (stages[i].helps()) optional_ |= stage_bit(i);
  }
}

std::size_t StageGraph::index_of(const std::string& stage) const {
  std::size_t i = 0;
  while (i < size() && nodes_[i].name != stage) ++i;
  return i;
}

StageSet StageGraph::known(const std::vector<std::string>& names) const {
  StageSet set = 0;
  for (const std::string& name : names) {
    if (const std::size_t stage = index_of(name); stage < size()) set |= stage_bit(stage);
  }
  return set;
}

void StageGraph::fill_edges(const std::vector<StageSpec>& stages) {
  for (std::size_t i = 0; i < size(); ++i) {
    const StageSpec& spec = stages[i];
    const StageSet next = known(spec.next), streams = known(spec.stream_to), waits = known(spec.wait_for);
    nodes_[i].next = next;
    nodes_[i].targets = next | streams;
    each(nodes_[i].targets, [&](std::size_t target) { nodes_[target].senders |= stage_bit(i); });
    if (spec.terminal) nodes_[i].reaches = stage_bit(i);
    if (spec.route.empty()) nodes_[i].always |= next;
    if (spec.stream_done_to.empty()) nodes_[i].always_streams |= streams;
    if (spec.wait_for_rule.empty()) nodes_[i].always |= waits;
  }
}

void StageGraph::fill_reaches() {
  for (bool changed = true; changed;) {
    changed = false;
    for (Node& node : nodes_) {
      const StageSet before = node.reaches;
      each(node.targets, [&](std::size_t target) { node.reaches |= nodes_[target].reaches; });
      changed |= node.reaches != before;
    }
  }
}

// Along payloads: a terminal has no result without one.
bool StageGraph::reached_without(std::size_t stage, std::size_t terminal) const {
  if (stage == entry_ || stage == terminal) return false;
  StageSet seen = stage_bit(stage) | stage_bit(entry_);
  for (StageSet fresh = stage_bit(entry_); fresh != 0;) {
    StageSet next = 0;
    each(fresh, [&](std::size_t at) { next |= nodes_[at].next; });
    fresh = next & ~seen;
    seen |= next;
  }
  return (seen & stage_bit(terminal)) != 0;
}

// Those that every way to the terminal leads through, whom these always send to or wait for, and so on; and to whom any
// of them streams. All but the last have a payload.
StageSet StageGraph::needed_by(std::size_t terminal) const {
  StageSet on_the_way = 0, must = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    if ((nodes_[i].reaches & stage_bit(terminal)) == 0) continue;
    on_the_way |= stage_bit(i);
    if (!reached_without(i, terminal)) must |= stage_bit(i);
  }
  for (StageSet fresh = must; fresh != 0;) {
    StageSet more = 0;
    each(fresh, [&](std::size_t at) { more |= nodes_[at].always; });
    fresh = more & on_the_way & ~must;
    must |= fresh;
  }
  StageSet listeners = 0;
  each(must, [&](std::size_t at) { listeners |= nodes_[at].always_streams; });
  return must | (listeners & on_the_way);
}

std::vector<std::string> StageGraph::terminals_of(const std::string& stage) const {
  std::vector<std::string> names;
  each(nodes_.at(index_of(stage)).reaches, [&](std::size_t terminal) { names.push_back(nodes_[terminal].name); });
  return names;
}

StageSet StageGraph::may_need(StageSet terminals) const {
  StageSet set = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    if ((nodes_[i].reaches & terminals) != 0) set |= stage_bit(i);
  }
  return set;
}

StageSet StageGraph::must_have(StageSet terminals) const {
  StageSet set = 0;
  each(terminals, [&](std::size_t terminal) { set |= nodes_[terminal].must; });
  return set;
}

bool StageGraph::needs(std::size_t stage, StageSet open, const std::vector<StageSet>& complete_inputs) const {
  if ((nodes_[stage].reaches & open) == 0) return false;
  StageSet seen = stage_bit(stage), fresh = seen;
  while (fresh != 0) {
    if ((fresh & open) != 0) return true;
    StageSet next = 0;
    each(fresh, [&](std::size_t at) {
      each(nodes_[at].targets, [&](std::size_t target) {
        if ((complete_inputs[target] & stage_bit(at)) == 0) next |= stage_bit(target);
      });
    });
    fresh = next & ~seen;
    seen |= next;
  }
  return false;
}

}  // namespace millrace
