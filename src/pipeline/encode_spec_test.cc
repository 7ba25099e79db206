// A stage whose pictures and audio another stage encodes, in a pipeline's file: what is accepted, and each error with
// its line.
#include <gtest/gtest.h>

#include "pipeline/spec.h"
#include "pipeline/text_pipeline.h"
#include "stages/library.h"

namespace millrace {
namespace {

std::string encode_file(const std::string& generate, const std::string& encode) {
  return "control: tcp://127.0.0.1:30100\nstages:\n  - {name: generate, worker: generate, next: detokenize, stream_to: "
         "detokenize" +
         generate + "}\n  - {name: vision, worker: " + encode +
         "}\n  - {name: detokenize, worker: detokenize, terminal: true}\n";
}

Result<PipelineSpec> parse_encode(const std::string& yaml) {
  Library library;
  for (const char* worker : {"generate", "encode", "prefill", "detokenize", "layers"}) library.workers[worker] = {};
  return parse_pipeline(yaml, "p.yaml", library);
}

TEST(EncodeSpec, AStageMayHaveItsMediaEncodedByAnother) {
  const auto spec = parse_encode(encode_file(", encode_from: vision, replicas: 2", "encode, replicas: 3, host: b"));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->find("generate")->encode_from, "vision");
  EXPECT_TRUE(spec->find("vision")->helps());
  EXPECT_TRUE(check_text_pipeline(*spec, "p.yaml", 0).ok());
  PipelineSpec without = *spec;
  without.stages[0].encode_from.clear();
  EXPECT_NE(spec->hash(), without.hash());
  EXPECT_NE(to_dot(*spec).find("\"vision\" -> \"generate\" [style=dotted, label=\"features\"]"), std::string::npos);
  EXPECT_NE(to_svg(*spec).find("features dotted"), std::string::npos);
}

TEST(EncodeSpec, EachErrorHasItsLine) {
  const std::pair<std::string, std::string> cases[] = {
      {encode_file(", encode_from: visio", "encode"), "p.yaml:3: encode_from of stage 'generate' is 'visio'; wanted"},
      {encode_file(", encode_from: detokenize", "encode"),
       "p.yaml:3: encode_from of stage 'generate' is 'detokenize', whose worker is 'detokenize'; wanted one of the "
       "worker encode"},
      {encode_file("", "encode"), "p.yaml:4: stage 'vision' is encode_from of no stage"},
      {encode_file(", encode_from: vision", "encode, next: detokenize"),
       "p.yaml:4: stage 'vision' has next and the worker encode, which gets no requests"},
      {encode_file(", encode_from: vision", "encode, encode_from: generate"),
       "p.yaml:4: stage 'vision' has encode_from and the worker encode; wanted the worker generate"},
      {encode_file(", encode_from: vision, prefill_from: p", "encode}\n  - {name: p, worker: prefill"),
       "p.yaml:3: stage 'generate' has encode_from and prefill_from; wanted one of them"},
  };
  for (const auto& [yaml, wanted] : cases) {
    const auto spec = parse_encode(yaml);
    ASSERT_FALSE(spec.ok()) << yaml;
    EXPECT_NE(spec.status().message().find(wanted), std::string::npos) << yaml << spec.status().message();
  }
}

}  // namespace
}  // namespace millrace
