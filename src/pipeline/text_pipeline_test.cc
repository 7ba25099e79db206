// Which pipelines are text pipelines, what of them is refused, and what the command line replaces.
#include "pipeline/text_pipeline.h"

#include <gtest/gtest.h>

#include "pipeline/testing/text_library.h"

namespace millrace {
namespace {

// The built-in pipeline with other placements; each is a line of one stage.
PipelineSpec spec_of(const std::string& scheduler, const std::string& detokenizer) {
  std::string text(builtin_pipeline(false));
  const auto put = [&text](const std::string& before, const std::string& lines) {
    const std::size_t at = text.find(before);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, before.size(), lines);
  };
  put("    process: scheduler\n", scheduler);
  put("    process: detokenizer\n", detokenizer);
  put("name: text\n", "name: text\ncontrol: \"tcp://127.0.0.1:30100\"\n");
  auto spec = parse_pipeline(text, "text.yaml", testing::text_library());
  EXPECT_TRUE(spec.ok()) << spec.status().to_string();
  return std::move(spec).value();
}

std::string refusal(const PipelineSpec& spec, int dp) { return check_text_pipeline(spec, "text.yaml", dp).message(); }

TEST(TextPipeline, TheBuiltInOneIsOfTheShape) {
  const auto spec = parse_pipeline(builtin_pipeline(false), "text.yaml", testing::text_library());
  ASSERT_TRUE(spec.ok()) << spec.status().to_string();
  EXPECT_TRUE(is_text_pipeline(*spec));
  EXPECT_EQ(refusal(*spec, 0), "");
  EXPECT_EQ(generating_stage(*spec).name, "scheduler");
}

TEST(TextPipeline, TheBuiltInOneThatSpeaksIsOfTheShape) {
  const auto spec = parse_pipeline(builtin_pipeline(true), "omni.yaml", testing::text_library());
  ASSERT_TRUE(spec.ok()) << spec.status().to_string();
  EXPECT_TRUE(is_text_pipeline(*spec));
  EXPECT_EQ(refusal(*spec, 0), "");
  const auto shape = text_shape(*spec);
  ASSERT_TRUE(shape.has_value());
  EXPECT_EQ(shape->detokenize->name, "detokenizer");
  EXPECT_EQ(shape->talk->name, "talker");
  EXPECT_EQ(shape->vocode->name, "vocoder");
}

// What speaks is complete and behind the stage that generates.
TEST(TextPipeline, HalfOfWhatSpeaksIsRefused) {
  const auto spec = parse_pipeline(builtin_pipeline(true), "omni.yaml", testing::text_library());
  ASSERT_TRUE(spec.ok());
  PipelineSpec without_vocoder = *spec;
  without_vocoder.stages.pop_back();
  EXPECT_NE(refusal(without_vocoder, 0).find("one of each of talk and vocode"), std::string::npos);
  PipelineSpec apart = *spec;
  apart.stages[0].next = apart.stages[0].stream_to = {"detokenizer"};
  EXPECT_NE(refusal(apart, 0).find("'detokenizer' and 'talker'"), std::string::npos);
  PipelineSpec elsewhere = *spec;
  elsewhere.stages[2].stream_to.clear();
  EXPECT_NE(refusal(elsewhere, 0).find("stage 'talker' must be 'vocoder'"), std::string::npos);
  EXPECT_FALSE(text_shape(elsewhere).has_value());
}

TEST(TextPipeline, TheCommandLineGoesOverTheFile) {
  PipelineSpec spec = spec_of("    process: s\n    replicas: 2\n", "    process: d\n");
  override_replicas(spec, 0, "round_robin");
  EXPECT_EQ(generating_stage(spec).replicas, 2);
  EXPECT_EQ(generating_stage(spec).replica_policy, ReplicaPolicy::kRoundRobin);
  override_replicas(spec, 3, "");
  EXPECT_EQ(generating_stage(spec).replicas, 3);
  EXPECT_EQ(generating_stage(spec).replica_policy, ReplicaPolicy::kRoundRobin);
}

TEST(TextPipeline, OthersAreRefused) {
  EXPECT_NE(refusal(spec_of("    host: far\n", ""), 2).find("--dp is 2"), std::string::npos);
  EXPECT_EQ(refusal(spec_of("", "    host: far\n"), 2), "");
  EXPECT_NE(refusal(spec_of("", "    replicas: 2\n"), 0).find("2 replicas; wanted 1"), std::string::npos);
  EXPECT_NE(refusal(spec_of("    replica_policy: round_robin\n", ""), 0).find("wanted --dp-policy"), std::string::npos);
  PipelineSpec other = spec_of("", "");
  other.stages[1].args.set("model", "elsewhere");
  EXPECT_NE(refusal(other, 0).find("both without args"), std::string::npos);
}

}  // namespace
}  // namespace millrace
