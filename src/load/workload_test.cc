// Workloads against what their header promises, read back from the prompts themselves.
#include "load/workload.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"

namespace millrace::load {
namespace {

std::vector<int64_t> ids_of(const Request& request) {
  const auto json = parse_json(request.prompt);
  EXPECT_TRUE(json.ok()) << request.prompt.substr(0, 80);
  return json.ok() ? json->get<std::vector<int64_t>>() : std::vector<int64_t>{};
}

Workload made(const WorkloadOptions& options) {
  auto workload = make_workload(options);
  EXPECT_TRUE(workload.ok()) << workload.status().to_string();
  return workload.ok() ? std::move(workload).value() : Workload{};
}

std::string trace_file(const std::string& text) {
  const std::string path = ::testing::TempDir() + "millrace_trace.jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(Workload, RandomPromptsHaveTheirLengthAndNothingInCommon) {
  const Workload workload = made({.requests = 50, .prompt_tokens = 33, .answer_tokens = 7, .vocabulary = 300});
  ASSERT_EQ(workload.requests.size(), 50u);
  EXPECT_FALSE(workload.open_loop);
  std::set<std::vector<int64_t>> beginnings;
  for (const Request& request : workload.requests) {
    const std::vector<int64_t> ids = ids_of(request);
    ASSERT_EQ(ids.size(), 33u);
    EXPECT_EQ(request.prompt_tokens, 33);
    EXPECT_EQ(request.answer_tokens, 7);
    for (const int64_t id : ids) {
      EXPECT_GE(id, kFirstToken);
      EXPECT_LT(id, 300);
    }
    beginnings.insert({ids.begin(), ids.begin() + 8});
  }
  EXPECT_EQ(beginnings.size(), 50u);
}

TEST(Workload, TheSeedIsAllThatDecides) {
  const Workload one = made({.requests = 5, .rate = 10, .seed = 3}), two = made({.requests = 5, .rate = 10, .seed = 3});
  const Workload other = made({.requests = 5, .rate = 10, .seed = 4});
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(one.requests[i].prompt, two.requests[i].prompt);
    EXPECT_EQ(one.requests[i].arrival_us, two.requests[i].arrival_us);
    EXPECT_NE(one.requests[i].prompt, other.requests[i].prompt);
  }
}

TEST(Workload, GroupsShareTheirPrefixAndNoMore) {
  const Workload workload = made(
      {.kind = WorkloadKind::kSharedPrefix, .requests = 12, .prompt_tokens = 16, .groups = 4, .prefix_tokens = 64});
  std::vector<std::vector<int64_t>> all;
  for (const Request& request : workload.requests) {
    all.push_back(ids_of(request));
    ASSERT_EQ(all.back().size(), 80u);
    EXPECT_EQ(request.prompt_tokens, 80);
  }
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a + 1; b < all.size(); ++b) {
      const bool same_prefix = std::equal(all[a].begin(), all[a].begin() + 64, all[b].begin());
      EXPECT_EQ(same_prefix, a % 4 == b % 4) << a << " " << b;
      EXPECT_FALSE(std::equal(all[a].begin() + 64, all[a].end(), all[b].begin() + 64)) << a << " " << b;
    }
  }
}

TEST(Workload, ArrivalsComeAtTheRateAscending) {
  const Workload workload = made({.requests = 4000, .prompt_tokens = 1, .rate = 200});
  EXPECT_TRUE(workload.open_loop);
  int64_t before = 0, longer = 0;
  for (const Request& request : workload.requests) {
    EXPECT_GE(request.arrival_us, before);
    longer += request.arrival_us - before > 5000;  // the mean gap; a share of 1/e exceeds it
    before = request.arrival_us;
  }
  EXPECT_NEAR(static_cast<double>(before) / 1e6, 20.0, 1.5);  // four standard deviations are 1.3
  EXPECT_NEAR(static_cast<double>(longer) / 4000, 0.368, 0.035);
}

TEST(Workload, WordsForServersThatTakeNoIds) {
  const Workload workload = made({.requests = 2, .prompt_tokens = 9, .text = true});
  const auto json = parse_json(workload.requests[0].prompt);
  ASSERT_TRUE(json.ok() && json->is_string());
  const auto text = json->get<std::string>();
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 8);
}

TEST(Workload, TraceLinesBecomeRequests) {
  const std::string path = trace_file(R"({"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}

{"timestamp": 100, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]}
{"timestamp": 250.5, "prompt": "Once \"upon\"", "output_length": 7}
)");
  const Workload workload = made({.kind = WorkloadKind::kTrace, .trace = path, .trace_speed = 2});
  ASSERT_EQ(workload.requests.size(), 3u);
  EXPECT_TRUE(workload.open_loop);
  EXPECT_EQ(workload.requests[1].arrival_us, 50'000);
  EXPECT_EQ(workload.requests[2].arrival_us, 125'250);
  EXPECT_EQ(workload.requests[1].answer_tokens, 6);
  const std::vector<int64_t> a = ids_of(workload.requests[0]), b = ids_of(workload.requests[1]);
  ASSERT_EQ(a.size(), 600u);
  ASSERT_EQ(b.size(), 700u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + kTraceBlockTokens, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + kTraceBlockTokens, a.end(), b.begin() + kTraceBlockTokens));
  EXPECT_EQ(workload.requests[2].prompt, R"("Once \"upon\"")");
}

TEST(Workload, BadOptionsAndTracesAreRefusedByName) {
  const auto message = [](const WorkloadOptions& options) { return make_workload(options).status().message(); };
  EXPECT_NE(message({.requests = 0}).find("requests is 0; wanted 1 to"), std::string::npos);
  EXPECT_NE(message({.prompt_tokens = -1}).find("prompt-tokens is -1"), std::string::npos);
  EXPECT_NE(message({.vocabulary = 10}).find("vocabulary is 10"), std::string::npos);
  EXPECT_NE(message({.rate = -1}).find("rate is -1"), std::string::npos);
  EXPECT_NE(message({.kind = WorkloadKind::kTrace, .trace = "/no/such"}).find("'/no/such' cannot be read"),
            std::string::npos);
  const struct {
    const char *text, *wanted;
  } cases[] = {
      {"", "holds no request"},
      {"[]", ":1: a array; wanted an object"},
      {"{\"timestamp\": 5}", ":1: input_length is 0"},
      {"{\"timestamp\": 5, \"input_length\": 3}\n{\"timestamp\": 4, \"input_length\": 3}",
       ":2: its timestamp is before"},
      {"{\"timestamp\": -1, \"input_length\": 3}", "timestamp is -1"},
      {"{\"timestamp\": 0, \"input_length\": 3, \"hash_ids\": [\"a\"]}", "hash_ids holds a string"},
      {"{\"timestamp\": 0,", ":1: "},
  };
  for (const auto& each : cases) {
    const std::string text = message({.kind = WorkloadKind::kTrace, .trace = trace_file(each.text)});
    EXPECT_NE(text.find(each.wanted), std::string::npos) << each.text << " gave: " << text;
  }
  EXPECT_FALSE(parse_workload_kind("shared").ok());
}

}  // namespace
}  // namespace millrace::load
