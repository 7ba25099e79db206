// StageGraph: the example's facts by name, and thousands of small random pipelines against a model that tries every
// answer that the rules may give.
#include "stages/stage_graph.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "stages/testing/fanin.h"

namespace millrace::testing {
namespace {

using Names = std::set<std::string>;

Names names_of(const std::vector<StageSpec>& stages, StageSet set) {
  Names names;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if ((set & stage_bit(i)) != 0) names.insert(stages[i].name);
  }
  return names;
}

struct Example : ::testing::Test {
  std::vector<StageSpec> stages = fanin_stages();
  StageGraph graph{stages, "preprocessing"};
  std::size_t at(const char* name) const { return graph.index_of(name); }
  StageSet set(const std::vector<std::string>& names) const { return graph.known(names); }
};

TEST_F(Example, WhichStagesARequestMayNeedAndMustHave) {
  EXPECT_EQ(names_of(stages, graph.may_need(set({"decode"}))),
            (Names{"preprocessing", "image_encoder", "audio_encoder", "mm_aggregate", "thinker", "decode"}));
  EXPECT_EQ(names_of(stages, graph.must_have(set({"decode"}))),
            (Names{"preprocessing", "mm_aggregate", "thinker", "decode"}));
  // The thinker may leave the talker out: its listeners are a rule's answer.
  EXPECT_EQ(names_of(stages, graph.must_have(set({"code2wav"}))),
            (Names{"preprocessing", "mm_aggregate", "talker_ar", "code2wav"}));
  EXPECT_EQ(graph.terminals_of("image_encoder"), (std::vector<std::string>{"decode", "code2wav"}));
  EXPECT_EQ(graph.terminals_of("talker_ar"), (std::vector<std::string>{"code2wav"}));
}

TEST_F(Example, WhatIsAlwaysWaitedForOrSentToIsNeeded) {
  stages[3].wait_for_rule.clear();   // the aggregate waits for both encoders
  stages[4].stream_done_to.clear();  // the thinker streams to both
  const StageGraph strict(stages, "preprocessing");
  const StageSet text = strict.known({"decode"});
  EXPECT_EQ(names_of(stages, strict.must_have(text)), names_of(stages, strict.may_need(text)));
}

TEST_F(Example, AnEdgeThatIsCompleteNeedsNoSource) {
  const StageSet both = set({"decode", "code2wav"}), text = set({"decode"});
  std::vector<StageSet> complete_inputs(graph.size());
  const auto needs = [&](const char* stage, StageSet open) { return graph.needs(at(stage), open, complete_inputs); };
  EXPECT_TRUE(needs("image_encoder", both));
  EXPECT_FALSE(needs("talker_ar", text));
  complete_inputs[at("mm_aggregate")] = set({"preprocessing", "image_encoder", "audio_encoder"});
  EXPECT_FALSE(needs("image_encoder", both));
  EXPECT_FALSE(needs("preprocessing", both));  // whatever else it sends would have to come through the aggregate
  EXPECT_TRUE(needs("mm_aggregate", both));
  complete_inputs[at("thinker")] = complete_inputs[at("talker_ar")] = set({"mm_aggregate"});
  EXPECT_FALSE(needs("mm_aggregate", both));
  EXPECT_TRUE(needs("thinker", both));
  EXPECT_TRUE(needs("decode", text));
}

// ---- the model

struct World {
  std::vector<StageSpec> stages;
  explicit World(uint32_t seed) {
    std::mt19937 dice(seed);
    const auto chance = [&dice](int percent) { return static_cast<int>(dice() % 100) < percent; };
    const std::size_t count = 2 + dice() % 5;
    stages.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      StageSpec& stage = stages[i];
      stage.name = "s" + std::to_string(i);
      for (std::size_t to = i + 1; to < count; ++to) {
        if (chance(45)) stage.next.push_back("s" + std::to_string(to));
        if (chance(20)) stage.stream_to.push_back("s" + std::to_string(to));
      }
      stage.terminal = stage.next.empty();
      if (!stage.terminal && chance(50)) stage.route = "r";
      if (!stage.stream_to.empty() && chance(50)) stage.stream_done_to = "r";
    }
    for (std::size_t i = 1; i < count; ++i) {
      if (!chance(50)) continue;
      for (const StageSpec& from : stages) {
        if (std::find(from.next.begin(), from.next.end(), stages[i].name) != from.next.end()) {
          stages[i].wait_for.push_back(from.name);
        }
      }
      if (!stages[i].wait_for.empty() && chance(50)) stages[i].wait_for_rule = "r";
    }
  }
};

// The stages that are named in an answer of the rules; every combination of them, as bits of (stage, target).
class AllAnswers {
 public:
  AllAnswers(const std::vector<StageSpec>& stages, const StageGraph& graph) : stages_(stages), graph_(graph) {}

  // Calls visit(participants) for each world in which the terminal gets its payload and no stage waits in vain.
  template <typename Visit>
  void each(std::size_t terminal, const Visit& visit) {
    terminal_ = terminal;
    choose(0, std::vector<StageSet>(stages_.size()), std::vector<StageSet>(stages_.size()), visit);
  }

 private:
  template <typename Visit>
  void choose(std::size_t stage, std::vector<StageSet> sends, std::vector<StageSet> streams, const Visit& visit) {
    if (stage == stages_.size()) return play(sends, streams, visit);
    const StageSpec& spec = stages_[stage];
    const StageSet next = useful(spec.next), to = useful(spec.stream_to);
    for (StageSet some = next;; some = (some - 1) & next) {
      if (spec.route.empty() ? some == next : true) {
        for (StageSet listen = to;; listen = (listen - 1) & to) {
          if (spec.stream_done_to.empty() ? listen == to : true) {
            sends[stage] = some, streams[stage] = listen;
            choose(stage + 1, sends, streams, visit);
          }
          if (listen == 0) break;
        }
      }
      if (some == 0) break;
    }
  }
  // No stage sends to one from which the terminal cannot be reached.
  StageSet useful(const std::vector<std::string>& names) const {
    StageSet set = 0;
    for (const std::string& name : names) {
      const std::size_t to = graph_.index_of(name);
      if ((graph_.reaches(to) & stage_bit(terminal_)) != 0) set |= stage_bit(to);
    }
    return set;
  }
  template <typename Visit>
  void play(const std::vector<StageSet>& sends, const std::vector<StageSet>& streams, const Visit& visit) {
    StageSet has_payload = stage_bit(0), participants = stage_bit(0);  // in the order of the spec, which is topological
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if ((has_payload & stage_bit(i)) == 0) continue;
      if (!stages_[i].wait_for.empty() && stages_[i].wait_for_rule.empty()) {
        for (const std::string& source : stages_[i].wait_for) {
          const std::size_t from = graph_.index_of(source);
          if ((has_payload & stage_bit(from)) == 0 || (sends[from] & stage_bit(i)) == 0) return;  // it waits in vain
        }
      }
      has_payload |= sends[i];
      participants |= sends[i] | streams[i];
    }
    if ((has_payload & stage_bit(terminal_)) != 0) visit(participants);
  }

  const std::vector<StageSpec>& stages_;
  const StageGraph& graph_;
  std::size_t terminal_ = 0;
};

TEST(StageGraph, ItsResultsHoldWhateverTheRulesAnswer) {
  int worlds = 0, some_left_out = 0;
  for (uint32_t seed = 1; seed <= 1500; ++seed) {
    const World world(seed);
    const StageGraph graph(world.stages, "");
    AllAnswers answers(world.stages, graph);
    for (std::size_t terminal = 0; terminal < world.stages.size(); ++terminal) {
      if (!world.stages[terminal].terminal) continue;
      const StageSet must = graph.must_have(stage_bit(terminal)), may = graph.may_need(stage_bit(terminal));
      EXPECT_EQ(must & ~may, 0u) << "seed " << seed;
      StageSet always = ~StageSet{0}, ever = 0;
      answers.each(terminal, [&](StageSet participants) { always &= participants, ever |= participants; });
      if (ever == 0) continue;  // nothing ever gets there
      ++worlds;
      some_left_out += ever != always ? 1 : 0;
      ASSERT_EQ(must & ~always, 0u) << "seed " << seed
                                    << ": a stage that does not always take part is reported as needed";
      ASSERT_EQ(ever & ~may, 0u) << "seed " << seed << ": a stage that takes part is reported as not needed";
    }
  }
  EXPECT_GT(worlds, 1000);
  EXPECT_GT(some_left_out, 200);
}

// By words: on a way from the stage to an open terminal, is there an edge of which not all has come?
bool needs_by_model(const std::vector<StageSpec>& stages, const StageGraph& graph, std::size_t stage, StageSet open,
                    const std::vector<StageSet>& complete_inputs) {
  if ((open & stage_bit(stage)) != 0) return true;
  for (const auto* list : {&stages[stage].next, &stages[stage].stream_to}) {
    for (const std::string& name : *list) {
      const std::size_t to = graph.index_of(name);
      if ((complete_inputs[to] & stage_bit(stage)) != 0) continue;
      if (needs_by_model(stages, graph, to, open, complete_inputs)) return true;
    }
  }
  return false;
}

TEST(StageGraph, NeedsIsAWayThatIsStillOpen) {
  int yes = 0, no = 0;
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    const World world(seed);
    const StageGraph graph(world.stages, "");
    std::mt19937_64 dice(seed);
    for (int round = 0; round < 20; ++round) {
      std::vector<StageSet> complete_inputs(graph.size());
      for (StageSet& set : complete_inputs) set = dice() & dice();
      StageSet terminals = 0;
      for (std::size_t i = 0; i < graph.size(); ++i) terminals |= world.stages[i].terminal ? stage_bit(i) : 0;
      const StageSet open = terminals & dice();
      for (std::size_t i = 0; i < graph.size(); ++i) {
        const bool wanted = needs_by_model(world.stages, graph, i, open, complete_inputs);
        ASSERT_EQ(graph.needs(i, open, complete_inputs), wanted) << "seed " << seed << ", stage " << i;
        ++(wanted ? yes : no);
      }
    }
  }
  EXPECT_GT(yes, 5000);
  EXPECT_GT(no, 5000);
}

}  // namespace
}  // namespace millrace::testing
