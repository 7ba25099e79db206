// Layer splits in a pipeline's file: what a chain must be, and the line and the words of each error.
#include "pipeline/chain_spec.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

Library library() {
  Library out;
  for (const char* name : {"generate", "layers", "detokenize"}) {
    out.workers[name] = [](const Value&, const auto&) { return Result<std::unique_ptr<Worker>>(nullptr); };
  }
  return out;
}

// Lines 3 to 6 are the stages.
std::string file(const std::string& generate, const std::string& upper, const std::string& top = "") {
  return "name: split\nstages:\n  - {name: generate, worker: generate, next: detokenize, stream_to: detokenize, " +
         generate + "}\n  - {name: upper, worker: layers, " + upper + "}\n  - {" +
         (top.empty() ? "name: top, worker: layers, layers: [4, 6]" : top) +
         "}\n  - {name: detokenize, worker: detokenize, terminal: true}\n";
}

const std::string kFirst = "layers: [0, 2], layers_to: upper";
const std::string kUpper = "layers: [2, 4], layers_to: top";

Result<PipelineSpec> parse(const std::string& yaml) { return parse_pipeline(yaml, "p.yaml", library()); }

std::string error_of(const std::string& yaml) {
  const auto spec = parse(yaml);
  return spec.ok() ? "accepted" : spec.status().message();
}

TEST(ChainSpec, AChainIsReadInTheSequenceOfItsRanges) {
  const auto spec = parse(file(kFirst, kUpper));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  for (const char* name : {"generate", "upper", "top"}) {
    std::vector<std::string> names;
    for (const StageSpec* stage : chain_of(*spec, *spec->find(name))) names.push_back(stage->name);
    EXPECT_EQ(names, (std::vector<std::string>{"generate", "upper", "top"})) << name;
  }
  EXPECT_TRUE(chain_of(*spec, *spec->find("detokenize")).empty());
  EXPECT_EQ(*spec->find("upper")->layers, (LayerRange{2, 4}));
  EXPECT_EQ(spec->terminals(), std::vector<std::string>{"detokenize"});
}

TEST(ChainSpec, TheFirstRangeMayBeEmpty) {
  EXPECT_EQ(error_of(file("layers: [0, 0], layers_to: upper", "layers: [0, 4], layers_to: top")), "accepted");
}

TEST(ChainSpec, TheLayersAreInTheHash) {
  const auto one = parse(file(kFirst, kUpper));
  const auto other = parse(file("layers: [0, 1], layers_to: upper", "layers: [1, 4], layers_to: top"));
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->hash(), other->hash());
}

TEST(ChainSpec, WhatIsNoChainIsRefusedByLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {file(kFirst, "layers: [3, 4], layers_to: top"),
       "p.yaml:4: layers of stage 'upper' begin at 3, which leaves a gap; wanted 2, where those of 'generate' end"},
      {file(kFirst, "layers: [1, 4], layers_to: top"),
       "p.yaml:4: layers of stage 'upper' begin at 1, which overlap; wanted 2, where those of 'generate' end"},
      {file(kFirst, "layers: [0, 4], layers_to: top"),
       "p.yaml:4: layers of stage 'upper' begin at 0, which overlap; wanted 2, where those of 'generate' end"},
      {file(kFirst, "layers: [2, 2], layers_to: top", "name: top, worker: layers, layers: [2, 6]"),
       "p.yaml:4: layers of stage 'upper' are [2, 2]; wanted one at least: only the first range may be empty"},
      {file("layers: [1, 2], layers_to: upper", kUpper),
       "p.yaml:3: layers of stage 'generate' begin at 1; wanted 0: it has the first range"},
      {file("layers: [0, 2]", kUpper),
       "p.yaml:3: stage 'generate' has layers and no layers_to; wanted the stage with the next range, or no layers\n"
       "p.yaml:4: stage 'upper' is in layers_to of no stage; wanted one, with the layers before 2"},
      {file("layers: [0, 2], layers_to: uper", kUpper),
       "p.yaml:3: layers_to of stage 'generate' is 'uper'; wanted the name of a stage; perhaps 'upper'\n"
       "p.yaml:4: stage 'upper' is in layers_to of no stage; wanted one, with the layers before 2"},
      {file("layers: [0, 2], layers_to: detokenize", kUpper),
       "p.yaml:3: layers_to of stage 'generate' is 'detokenize', whose worker is 'detokenize'; wanted one of the "
       "worker layers\np.yaml:4: stage 'upper' is in layers_to of no stage; wanted one, with the layers before 2"},
      {file(kFirst, "layers_to: top"), "p.yaml:4: stage 'upper' has no layers; wanted layers: [BEGIN, END]"},
      {file(kFirst, kUpper, "name: top, worker: layers, layers: [4, 6], layers_to: upper"),
       "p.yaml:5: layers_to of the stages 'generate' and 'top' is 'upper'; wanted one of them"},
      {file("layers: [0, 2], layers_to: upper, replicas: 2", kUpper + ", replicas: 2"),
       "p.yaml:5: stage 'top' has 1 replicas; wanted 2, as 'upper' before it has"},
      {file(kFirst, kUpper + ", next: detokenize"),
       "p.yaml:4: stage 'upper' has next and the worker layers, which gets no requests; wanted it left out"},
      {file(kFirst + ", layers_to: upper", kUpper), "p.yaml:3: stage 'generate' has the key 'layers_to' twice"},
      {file("layers: [0, -2], layers_to: upper", kUpper),
       "p.yaml:3: layers of stage 'generate' is a list; wanted two layers from 0 on, the first one and the one behind "
       "the last: [0, 3]"},
      {file(kFirst, kUpper, "name: top, worker: detokenize, layers: [4, 6], terminal: true"),
       "p.yaml:5: stage 'top' is reached by no payload from the entry 'generate'\n"
       "p.yaml:5: stage 'top' has layers and the worker 'detokenize'; wanted the worker generate or layers\n"
       "p.yaml:4: layers_to of stage 'upper' is 'top', whose worker is 'detokenize'; wanted one of the worker layers"},
  };
  for (const auto& [yaml, wanted] : cases) EXPECT_EQ(error_of(yaml), wanted) << yaml;
}

TEST(ChainSpec, ACycleIsNamed) {
  const std::string yaml =
      "name: split\nstages:\n  - {name: generate, worker: generate, next: detokenize, stream_to: detokenize}\n"
      "  - {name: upper, worker: layers, layers: [2, 4], layers_to: top}\n"
      "  - {name: top, worker: layers, layers: [4, 6], layers_to: upper}\n"
      "  - {name: detokenize, worker: detokenize, terminal: true}\n";
  const std::string found = error_of(yaml);
  EXPECT_NE(found.find("p.yaml:4: layers_to of the stages form a cycle: top -> upper -> top"), std::string::npos)
      << found;
}

TEST(ChainSpec, PicturesShowTheRanges) {
  const auto spec = parse(file(kFirst, kUpper));
  ASSERT_TRUE(spec.ok());
  const std::string dot = to_dot(*spec), svg = to_svg(*spec);
  EXPECT_NE(dot.find("\"generate\" -> \"upper\" [style=dotted, label=\"rows\"]"), std::string::npos) << dot;
  EXPECT_NE(svg.find("layers [2, 4)"), std::string::npos) << svg;
  EXPECT_NE(svg.find("id=\"rows\""), std::string::npos) << svg;
}

}  // namespace
}  // namespace millrace
