// Every option of `serve` that a pipeline does not use is refused by name.
#include "app/unused_options.h"

#include <gtest/gtest.h>

#include "app/library.h"
#include "pipeline/text_pipeline.h"

namespace millrace {
namespace {

std::string refusal(const std::vector<std::string>& given, const PipelineSpec& spec) {
  ServeOptions options;
  options.given = given;
  return check_used(options, spec).message();
}

// A pipeline that is not of text.
PipelineSpec echo(const std::string& more = "") {
  return *parse_pipeline("stages:\n  - {name: a, worker: work, terminal: true" + more + "}\n", "p.yaml",
                         make_library({}, [](Library& library) { library.workers["work"] = {}; }));
}

TEST(UnusedOptions, OfModelsAndText) {
  std::vector<std::string> names = model_option_names();
  names.insert(names.end(), {"request-timeout-s",
                             "queue-timeout-s",
                             "stall-restart-s",
                             "dp",
                             "dp-policy",
                             "served-model-name",
                             "any-model-name",
                             "require-model",
                             "public-models",
                             "media-allowed-domains",
                             "media-allow-private-networks",
                             "media-root",
                             "video-max-frames",
                             "video-max-pixels",
                             "video-max-seconds",
                             "video-max-mib",
                             "video-decode-seconds",
                             "response-store-mib",
                             "response-store-ttl-s",
                             "response-store-file"});
  for (const std::string& name : names) {
    if (name == "log-level") continue;
    EXPECT_NE(refusal({"port", name}, echo()).find("--" + name + " has no use"), std::string::npos) << name;
  }
  EXPECT_NE(refusal({"request-timeout-s"}, echo()).find("request_timeout_s in the file"), std::string::npos);
  EXPECT_NE(refusal({"dp"}, echo()).find("replicas of a stage"), std::string::npos);
  EXPECT_NE(refusal({"kv-gib"}, echo()).find("kv_gib in the args"), std::string::npos);
}

// Of a pipeline of text whose file names the model.
PipelineSpec text_of_file() {
  return *parse_pipeline(
      "entry: a\nstages:\n"
      "  - {name: a, worker: generate, args: {model: m}, next: b, stream_to: b}\n"
      "  - {name: b, worker: detokenize, args: {model: m}, can_accept_stream_before_payload: true, terminal: true}\n",
      "text.yaml", make_library());
}

TEST(UnusedOptions, OfTheServerOfText) {
  for (const char* name :
       {"no-web", "no-request-log", "public-models", "served-model-name", "any-model-name", "require-model",
        "response-store-mib", "response-store-ttl-s", "response-store-file", "media-root", "video-max-mib"}) {
    EXPECT_EQ(refusal({name}, text_of_file()), "") << name;
    EXPECT_NE(refusal({name}, echo()).find("it is for answers that are text"), std::string::npos) << name;
  }
  EXPECT_NE(refusal({"dp"}, text_of_file()).find("replicas of a stage"), std::string::npos);
  EXPECT_NE(refusal({"prefill"}, text_of_file()).find("the model of the command line"), std::string::npos);
}

TEST(UnusedOptions, AFileOfAnswersThatAreNotStored) {
  ServeOptions options;
  options.response_store_file = "answers.db";
  EXPECT_TRUE(check_used(options, text_of_file()).ok());
  options.response_store_mib = 0;
  EXPECT_FALSE(check_used(options, text_of_file()).ok());
}

TEST(UnusedOptions, WhatAnyPipelineUses) {
  for (const char* name :
       {"host", "port", "uds", "api-key", "admin-api-key", "admin-api-key-file", "admin-without-key", "cors-origin",
        "allowed-host", "max-body-mib", "pipeline", "placement", "drain-timeout-s", "profile-dir", "log-level"}) {
    EXPECT_EQ(refusal({name}, echo()), "");
  }
}

TEST(UnusedOptions, WhatOnlyHostsNeed) {
  for (const char* name : {"listen", "key-file"}) {
    EXPECT_NE(refusal({name}, echo()).find("no stage of the pipeline has a host"), std::string::npos);
    PipelineSpec far = echo();
    far.stages[0].host = "other";
    EXPECT_EQ(refusal({name}, far), "");
  }
}

TEST(UnusedOptions, TextUsesTheOthers) {
  const auto text = parse_pipeline(builtin_pipeline(false), "text.yaml", make_library());
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(refusal({"model", "dp", "request-timeout-s", "kv-gib"}, *text), "");
  EXPECT_NE(refusal({"listen"}, *text), "");
  for (const std::string name : {"models-max", "models-memory-gib"}) {
    EXPECT_NE(refusal({"model", name}, *text).find("--" + name + " has no use with one model"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
