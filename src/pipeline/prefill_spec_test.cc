// Stages that compute prompts for others, in a pipeline's file and by --prefill: what they must be, and each error.
#include "pipeline/prefill_spec.h"

#include <gtest/gtest.h>

#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

Library library() {
  Library out;
  for (const char* name : {"generate", "layers", "prefill", "detokenize"}) {
    out.workers[name] = [](const Value&, const auto&) { return Result<std::unique_ptr<Worker>>(nullptr); };
  }
  return out;
}

// Lines 3 to 5 are the stages.
std::string file(const std::string& generate, const std::string& prompts) {
  return "control: tcp://127.0.0.1:30100\nstages:\n  - {name: generate, worker: generate, next: detokenize, stream_to: "
         "detokenize" +
         generate + "}\n  - {name: prompts, worker: " + prompts +
         "}\n  - {name: detokenize, worker: detokenize, terminal: true}\n";
}

const std::string kFrom = ", prefill_from: prompts";

Result<PipelineSpec> parse(const std::string& yaml) { return parse_pipeline(yaml, "p.yaml", library()); }

std::string error_of(const std::string& yaml) {
  const auto spec = parse(yaml);
  return spec.ok() ? "accepted" : spec.status().message();
}

TEST(PrefillSpec, AStageMayHaveItsPromptsComputedByAnother) {
  const auto spec = parse(file(kFrom + ", replicas: 2", "prefill, replicas: 3, host: b"));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->find("generate")->prefill_from, "prompts");
  EXPECT_TRUE(check_text_pipeline(*spec, "p.yaml", 0).ok());
  PipelineSpec without = *spec;
  without.stages[0].prefill_from.clear();
  EXPECT_NE(spec->hash(), without.hash());
  EXPECT_NE(to_dot(*spec).find("\"prompts\" -> \"generate\" [style=dotted, label=\"pages\"]"), std::string::npos);
  EXPECT_NE(to_svg(*spec).find("KV pages dotted"), std::string::npos);
}

TEST(PrefillSpec, EachErrorHasItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {file(", prefill_from: prompt", "prefill"),
       "p.yaml:3: prefill_from of stage 'generate' is 'prompt'; wanted the name of a stage; perhaps 'prompts'\n"
       "p.yaml:4: stage 'prompts' is prefill_from of no stage; wanted one, whose prompts it computes"},
      {file(", prefill_from: detokenize", "prefill"),
       "p.yaml:3: prefill_from of stage 'generate' is 'detokenize', whose worker is 'detokenize'; wanted one of the "
       "worker prefill\n"
       "p.yaml:4: stage 'prompts' is prefill_from of no stage; wanted one, whose prompts it computes"},
      {file("", "prefill"),
       "p.yaml:4: stage 'prompts' is prefill_from of no stage; wanted one, whose prompts it computes"},
      {file(kFrom, "prefill, next: detokenize"),
       "p.yaml:4: stage 'prompts' has next and the worker prefill, which gets no requests; wanted it left out"},
      {file(kFrom, "prefill, prefill_from: generate"),
       "p.yaml:4: stage 'prompts' has prefill_from and the worker prefill; wanted the worker generate"},
      {file(kFrom + ", layers: [0, 2], layers_to: upper", "prefill}\n  - {name: upper, worker: layers, layers: [2, 4]"),
       "p.yaml:3: stage 'generate' has prefill_from and layers; wanted one of them: a layer split transfers no pages"},
      {"stages:\n  - {name: a, worker: generate, next: [b, p], prefill_from: p}\n  - {name: b, worker: detokenize, "
       "terminal: true}\n  - {name: p, worker: prefill}\n",
       "p.yaml:2: next of stage 'a' is 'p', which gets no requests; wanted prefill_from for pages"},
  };
  for (const auto& [yaml, wanted] : cases) EXPECT_EQ(error_of(yaml), wanted) << yaml;
}

TEST(PrefillSpec, TheCommandLineAddsAStageOrReplacesItsReplicas) {
  PipelineSpec text = parse_pipeline(builtin_pipeline(false), "text.yaml", library()).value();
  ASSERT_TRUE(set_prefill_replicas(text, "text.yaml", 3).ok());
  EXPECT_EQ(generating_stage(text).prefill_from, "prefill");
  EXPECT_EQ(text.find("prefill")->replicas, 3);
  EXPECT_EQ(text.find("prefill")->process, "prefill");
  PipelineSpec with_stage = parse(file(kFrom, "prefill, replicas: 2")).value();
  ASSERT_TRUE(set_prefill_replicas(with_stage, "p.yaml", 5).ok());
  EXPECT_EQ(with_stage.find("prompts")->replicas, 5);
  EXPECT_EQ(with_stage.stages.size(), 3u);
}

TEST(PrefillSpec, WhatTheCommandLineCannotChangeIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {file(kFrom, "prefill, host: b"),
       "p.yaml:3: --prefill is 1 and the pipeline is over several hosts; wanted a stage of worker prefill in the file, "
       "which all hosts read"},
      {"stages:\n  - {name: generate, worker: generate, next: prefill, stream_to: prefill}\n"
       "  - {name: prefill, worker: detokenize, terminal: true}\n",
       "p.yaml:3: --prefill is 1 and there is a stage 'prefill'; wanted another name for it"},
  };
  for (const auto& [yaml, wanted] : cases) {
    PipelineSpec spec = parse(yaml).value();
    EXPECT_EQ(set_prefill_replicas(spec, "p.yaml", 1).message(), wanted);
  }
}

}  // namespace
}  // namespace millrace
