// Where the stages of text pipelines run: processes, replicas, hosts, and what is refused.
#include "app/text_plan.h"

#include <gtest/gtest.h>

#include "app/library.h"

namespace millrace {
namespace {

// The built-in pipeline with other placements; each is a line of one stage.
PipelineSpec spec_of(const std::string& scheduler, const std::string& detokenizer) {
  std::string text(builtin_text_pipeline());
  const auto put = [&text](const std::string& before, const std::string& lines) {
    const std::size_t at = text.find(before);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, before.size(), lines);
  };
  put("    process: scheduler\n", scheduler);
  put("    process: detokenizer\n", detokenizer);
  put("name: text\n", "name: text\ncontrol: \"tcp://127.0.0.1:30100\"\n");
  auto spec = parse_pipeline(text, "text.yaml", make_library());
  EXPECT_TRUE(spec.ok()) << spec.status().to_string();
  return std::move(spec).value();
}

std::string refusal(const PipelineSpec& spec, int dp) {
  const auto plan = plan_text(spec, "text.yaml", dp, false);
  return plan.ok() ? "" : plan.status().message();
}

TEST(TextPlan, AllOnThisHost) {
  const PipelineSpec spec = spec_of("    process: s\n", "    process: d\n");
  const auto plan = plan_text(spec, "text.yaml", 2, false);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_FALSE(plan->over_hosts());
  EXPECT_EQ(plan->schedulers(), 2);
  EXPECT_EQ(plan->children(), (std::vector<std::string>{"s-0", "s-1", "d"}));
  const auto single = plan_text(spec, "text.yaml", 2, true);
  ASSERT_TRUE(single.ok());
  EXPECT_TRUE(single->children().empty());
}

TEST(TextPlan, SchedulersOfAnotherHostAreNoChildren) {
  const PipelineSpec spec = spec_of("    replicas: 3\n    host: far\n", "    process: d\n");
  const auto plan = plan_text(spec, "text.yaml", 0, false);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_TRUE(plan->over_hosts());
  EXPECT_EQ(plan->children(), std::vector<std::string>{"d"});
  const TextSeat* seat = plan->find("scheduler", 2);
  ASSERT_NE(seat, nullptr);
  EXPECT_EQ(seat->name, "scheduler-2");
  EXPECT_TRUE(seat->remote());
  EXPECT_FALSE(seat->here());
  EXPECT_EQ(plan->find("scheduler-2"), seat);
  EXPECT_EQ(plan->find("scheduler", 3), nullptr);
  EXPECT_FALSE(plan->detokenizer().remote());
}

TEST(TextPlan, SingleTakesWhatIsOfThisHost) {
  const PipelineSpec spec = spec_of("    process: s\n", "    host: far\n");
  const auto plan = plan_text(spec, "text.yaml", 0, true);
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_TRUE(plan->children().empty());
  EXPECT_TRUE(plan->seats.front().here());
  EXPECT_TRUE(plan->detokenizer().remote());
  EXPECT_FALSE(plan->detokenizer().here());
}

TEST(TextPlan, OthersAreRefused) {
  EXPECT_NE(refusal(spec_of("    host: far\n", ""), 2).find("--dp is 2"), std::string::npos);
  EXPECT_EQ(refusal(spec_of("", "    host: far\n"), 2), "");
  EXPECT_NE(refusal(spec_of("", "    replicas: 2\n"), 0).find("2 replicas; wanted 1"), std::string::npos);
}

}  // namespace
}  // namespace millrace
