// The coordinator's question what stages have of a request, and the answer: the bytes of an independent writer
// (tests/oracles/wire_frames.py), and what is refused.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "wire/codec.h"
#include "wire/messages.h"
#include "wire/testing/frames.h"

namespace millrace::wire {
namespace {

RequestProbe sample_probe() {
  return {.from = {.session = 0x1122334455667788}, .round = 70000, .ids = {ReqId{9}, ReqId{~uint64_t{0}}}};
}

RequestReport sample_report() {
  RequestReport report{.from = {0x1122334455667788, "image_encoder", 1, 7}, .round = 70000};
  report.requests = {{.id = ReqId{9},
                      .state = StageRequestState::kWorking,
                      .sources = {"preprocess", "thinker"},
                      .targets = {"decode"}},
                     {.id = ReqId{10}, .state = StageRequestState::kFinished}};
  return report;
}

const std::vector<std::pair<std::string, Message>> kProbeSamples = {{"request_probe", sample_probe()},
                                                                    {"request_report", sample_report()}};

TEST(ProbeCodec, FramesEqualTheOraclesBytesAndComeBack) { testing::expect_golden_frames(kProbeSamples); }

TEST(ProbeCodec, TruncatedAndMutatedFramesAreRefusedOrAreMessages) {
  std::mt19937_64 random(13);
  for (const auto& [name, message] : kProbeSamples) {
    testing::expect_refused_or_messages(testing::golden_frame(name), name, random, 2000);
  }
}

void expect_refused(const Message& message, const std::string& why) {
  const auto frame = encode(message);
  ASSERT_FALSE(frame.ok()) << why;
  EXPECT_NE(frame.status().message().find(why), std::string::npos) << frame.status().message();
}

TEST(ProbeCodec, LimitsAndNamesAreKept) {
  RequestProbe probe = sample_probe();
  probe.ids.resize(kMaxProbedRequests + 1);
  expect_refused(probe, "3: 1025 elements; wanted at most 1024");
  RequestReport report = sample_report();
  report.from.stage.clear();
  expect_refused(report, "from.stage is \"\"");
  report = sample_report();
  report.requests[0].sources = {"a", "a"};
  expect_refused(report, "\"a\" is named twice");
  report = sample_report();
  report.requests[1].targets = {""};
  expect_refused(report, "a target is \"\"");
  report = sample_report();
  report.requests.resize(kMaxProbedRequests + 1);
  expect_refused(report, "3: 1025 elements; wanted at most 1024");
}

}  // namespace
}  // namespace millrace::wire
