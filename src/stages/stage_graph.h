// StageGraph: which stages a request may need, must have, and needs still, as far as a pipeline's edges determine it.
//
// Payload edges (`next`) and streams (`stream_to`) alike lead from a stage to those whose work depends on it. Rules
// (`route`, `stream_done_to`, `wait_for_rule`) choose among them for each request, and no stage knows the answers of
// another stage's rules. So all results here hold whatever they answer. Sets of stages are bits: bit i is
// stages[i] of the spec.
//
// Owner: the Coordinator. Thread safety: immutable; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stages/stage_spec.h"

namespace millrace {

using StageSet = uint64_t;
static_assert(kMaxStages <= 64);

constexpr StageSet stage_bit(std::size_t stage) { return StageSet{1} << stage; }

class StageGraph {
 public:
  // At most kMaxStages stages, whose targets are all there. `entry` is empty for the first.
  StageGraph(const std::vector<StageSpec>& stages, const std::string& entry);

  std::size_t size() const { return nodes_.size(); }
  // size(): there is none of that name.
  std::size_t index_of(const std::string& stage) const;
  const std::string& name_of(std::size_t stage) const { return nodes_[stage].name; }
  std::size_t entry() const { return entry_; }

  // The terminals that the work of a stage may get to, itself included.
  StageSet reaches(std::size_t stage) const { return nodes_[stage].reaches; }
  std::vector<std::string> terminals_of(const std::string& stage) const;
  // The stages that may send to it.
  StageSet senders(std::size_t stage) const { return nodes_[stage].senders; }

  // For a request with these terminals: the stages whose work may get to one of them. No other one is sent anything.
  StageSet may_need(StageSet terminals) const;
  // And those without which it cannot be completed, whatever the rules answer.
  StageSet must_have(StageSet terminals) const;
  // Whether a request still depends on `stage`: something may yet come from there to a terminal that is `open`.
  // complete_inputs[i] are the stages from which stages[i] has everything: no more comes along those edges.
  bool needs(std::size_t stage, StageSet open, const std::vector<StageSet>& complete_inputs) const;
  // Those without which every request is served, later: the stages that compute prompts for others.
  StageSet optional() const { return optional_; }
  // Those of these names that are in the pipeline.
  StageSet known(const std::vector<std::string>& names) const;

 private:
  struct Node {
    std::string name;
    StageSet next = 0;
    StageSet targets = 0;  // next and stream_to
    StageSet senders = 0;
    StageSet always = 0;          // of next and wait_for: those that no rule leaves out
    StageSet always_streams = 0;  // of stream_to
    StageSet reaches = 0;
    StageSet must = 0;  // of a terminal: what each request that has it needs
  };
  void fill_edges(const std::vector<StageSpec>& stages);
  void fill_reaches();
  bool reached_without(std::size_t stage, std::size_t terminal) const;
  StageSet needed_by(std::size_t terminal) const;

  std::vector<Node> nodes_;
  std::size_t entry_ = 0;
  StageSet optional_ = 0;
};

}  // namespace millrace
