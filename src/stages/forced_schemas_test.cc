// Forced runs over a real model and many schemas: with them and without, each request has the same text, in fewer
// steps.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "grammar/json_schema.h"
#include "models/testing/model_testing.h"
#include "runner/model_runner.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr int kSchemas = 60, kRequests = 6, kFirstToken = 5, kEnd = 2;

// As a client may ask: names and constants leave no choice about most of their characters.
class Schemas {
 public:
  explicit Schemas(uint32_t seed) : random_(seed) {}

  json object(int depth = 0) {
    json out = {{"type", "object"}, {"additionalProperties", false}, {"properties", json::object()}};
    json required = json::array();
    for (int i = 0, count = 1 + pick(4); i < count; ++i) {
      const std::string name = word() + std::to_string(i);
      out["properties"][name] = value(depth);
      if (pick(4) > 0) required.push_back(name);
    }
    out["required"] = required;
    return out;
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<uint32_t>(count)); }
  std::string word() {
    std::string out;
    for (int i = 0, count = 2 + pick(9); i < count; ++i) out += static_cast<char>('a' + pick(26));
    return out;
  }
  json value(int depth) {
    switch (pick(depth < 2 ? 7 : 5)) {
      case 0:
        return {{"const", word()}};
      case 1:
        return {{"enum", {word(), word(), pick(100), nullptr}}};
      case 2:
        return {{"type", "integer"}, {"minimum", -5}, {"maximum", 1000}};
      case 3:
        return {{"type", "string"}, {"pattern", "^[a-c]{1,3}-fixed-[0-9]{2}$"}};
      case 4:
        return {{"type", "boolean"}};
      case 5:
        return {{"type", "array"}, {"items", value(depth + 1)}, {"minItems", 1}, {"maxItems", 3}};
      default:
        return object(depth + 1);
    }
  }
  std::mt19937 random_;
};

struct Ran {
  std::map<uint64_t, std::vector<int32_t>> texts;
  std::map<uint64_t, wire::Finish> ends;
  std::map<uint64_t, int32_t> counted, deltas;
  SchedulerFacts facts;
};

class ForcedSchemasTest : public testing::Test {
 protected:
  void SetUp() override {
    auto model = load_model_dir(std::string(MILLRACE_SOURCE_DIR) + "/tests/golden/models/tiny_qwen2", 7);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = *model;
    std::vector<std::string> tokens(static_cast<std::size_t>(model_->config().vocab_size));
    for (int c = 0x20; c < 0x7f; ++c) tokens[static_cast<std::size_t>(c - 0x20 + kFirstToken)] = static_cast<char>(c);
    tokens[120] = "\n", tokens[121] = "fix", tokens[122] = "ed-", tokens[123] = "\":", tokens[124] = "{\"";
    trie_ = grammar::TokenTrie::build(tokens).value();
    Schemas schemas(11);
    for (int i = 0; i < kSchemas; ++i) {
      auto rules = grammar::parse_json_schema(schemas.object().dump());
      ASSERT_TRUE(rules.ok()) << rules.status().to_string();
      grammars_.push_back(std::make_shared<const grammar::TokenGrammar>(
          grammar::TokenGrammar{grammar::Grammar::compile(*rules).value(), trie_, {kEnd}}));
    }
  }

  wire::TokenizedRequest request(uint64_t id) const {
    wire::TokenizedRequest out;
    out.id = ReqId{id};
    for (int32_t i = 0; i < 3 + static_cast<int32_t>(id % 9); ++i) out.prompt.push_back(kFirstToken + i);
    out.sampling.max_tokens = 20 + static_cast<int32_t>(id * 13 % 60);
    out.sampling.temperature = id % 3 == 0 ? 0 : 1;
    out.sampling.seed = id;
    if (id % 4 == 1) out.sampling.frequency_penalty = 0.7;
    if (id % 5 == 1) out.sampling.stop_token_ids = {kFirstToken + ('x' - 0x20), kFirstToken + ('}' - 0x20)};
    if (id % 7 == 1) out.sampling.min_tokens = 10;
    if (id % 6 == 1) out.sampling.top_logprobs = 0;
    return out;
  }

  Ran run(const std::shared_ptr<const grammar::TokenGrammar>& grammar, SchedulerOptions options) const {
    options.eos_token_ids = {kEnd};
    auto runner = ModelRunner::make(model_, {.threads = 2, .page_size = 8, .page_count = 64});
    EXPECT_TRUE(runner.ok());
    Scheduler scheduler(std::move(options), **runner);
    Ran out;
    Scheduler::Deltas deltas;
    for (uint64_t id = 1; id <= kRequests; ++id) scheduler.receive(request(id), deltas, {.grammar = grammar});
    while (scheduler.step(1000, deltas)) {
    }
    for (wire::TokenDelta& delta : deltas) {
      const uint64_t id = delta.id.value;
      out.texts[id].insert(out.texts[id].end(), delta.tokens.begin(), delta.tokens.end());
      out.deltas[id] += !delta.tokens.empty();
      out.counted[id] = delta.usage.completion_tokens;
      if (delta.finish) out.ends[id] = *delta.finish;
    }
    out.facts = scheduler.facts();
    return out;
  }

  std::shared_ptr<const Model> model_;
  std::shared_ptr<const grammar::TokenTrie> trie_;
  std::vector<std::shared_ptr<const grammar::TokenGrammar>> grammars_;
};

TEST_F(ForcedSchemasTest, TheSameTextsInFewerSteps) {
  uint64_t steps = 0, single_steps = 0, forced = 0;
  for (std::size_t i = 0; i < grammars_.size(); ++i) {
    SCOPED_TRACE("schema " + std::to_string(i));
    const bool overlap = i % 3 != 0;
    const Ran single = run(grammars_[i], {.max_forced_run = 0, .overlap = overlap});
    const Ran runs = run(grammars_[i], {.overlap = overlap});
    EXPECT_EQ(runs.texts, single.texts);
    EXPECT_EQ(runs.counted, single.counted);
    EXPECT_EQ(runs.deltas, single.deltas) << "a token a delta";
    ASSERT_EQ(runs.ends.size(), std::size_t{kRequests});
    for (const auto& [id, end] : runs.ends) {
      EXPECT_EQ(end.reason, single.ends.at(id).reason) << end.message;
      EXPECT_EQ(end.matched_token, single.ends.at(id).matched_token);
      EXPECT_EQ(end.message, single.ends.at(id).message);
      // Below min_tokens an end may be all that is left, and banned.
      if (request(id).sampling.min_tokens == 0) {
        EXPECT_NE(end.reason, wire::FinishReason::kError) << end.message;
      }
    }
    EXPECT_EQ(single.facts.forced_run_tokens, 0u);
    // Beside a step that runs, the next one is planned: how often behind an end, and so for nothing, is the machine's.
    if (!overlap) {
      EXPECT_LE(runs.facts.computed_tokens, single.facts.computed_tokens);
    }
    steps += runs.facts.steps, single_steps += single.facts.steps, forced += runs.facts.forced_run_tokens;
  }
  std::printf("%lu steps instead of %lu; %lu tokens in forced runs\n", steps, single_steps, forced);
  EXPECT_GT(forced, 1000u);
  EXPECT_LT(steps, single_steps);
}

}  // namespace
}  // namespace millrace
