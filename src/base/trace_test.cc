// Trace: what is written is JSON that a trace viewer understands, spans nest, and nothing is kept while no session
// records.
#include "base/trace.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace millrace {
namespace {

using nlohmann::json;

class TraceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "/trace-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static json read(const std::string& path) {
    std::ifstream file(path);
    return json::parse(file);  // throws where it is not JSON
  }
  // The events of one phase, in the file's order.
  static std::vector<json> events(const json& trace, const std::string& phase) {
    std::vector<json> out;
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") == phase) out.push_back(event);
    }
    return out;
  }

  std::string folder_;
};

TEST_F(TraceTest, SpansNestAndCarryTheirNumbers) {
  ASSERT_TRUE(trace::start(folder_).ok());
  trace::name_thread("test");
  {
    trace::Span step("step", "scheduler");
    step.note("rows", 7);
    { trace::Span plan("plan", "scheduler"); }
    { trace::Span settle("settle", "scheduler"); }
  }
  std::thread([] { trace::Span other("other", "runner"); }).join();
  trace::async_begin("request", "http", 9);
  trace::async_end("request", "http", 9);
  auto path = trace::stop(folder_);
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  const json written = read(*path);
  const auto spans = events(written, "X");
  ASSERT_EQ(spans.size(), 4u);
  json step, plan, settle, other;
  for (const json& span : spans) {
    (span["name"] == "step" ? step : span["name"] == "plan" ? plan : span["name"] == "settle" ? settle : other) = span;
  }
  EXPECT_EQ(step["args"]["rows"], 7);
  EXPECT_EQ(step["cat"], "scheduler");
  EXPECT_EQ(plan["tid"], step["tid"]);
  EXPECT_NE(other["tid"], step["tid"]);
  const auto begin = [](const json& span) { return span["ts"].get<double>(); };
  const auto end = [&](const json& span) { return begin(span) + span["dur"].get<double>(); };
  constexpr double kRounding = 0.01;  // microseconds
  EXPECT_GE(begin(plan), begin(step));
  EXPECT_GE(begin(settle) + kRounding, end(plan));
  EXPECT_LE(end(settle), end(step) + kRounding);
  ASSERT_EQ(events(written, "b").size(), 1u);
  EXPECT_EQ(events(written, "b")[0]["id"], events(written, "e")[0]["id"]);
  struct stat info {};
  ASSERT_EQ(::stat(path->c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(TraceTest, NothingIsRecordedOutsideASession) {
  { trace::Span before("before", "test"); }
  auto early = std::make_unique<trace::Span>("early", "test");
  ASSERT_TRUE(trace::start(folder_).ok());
  early.reset();  // began before
  auto late = std::make_unique<trace::Span>("late", "test");
  auto path = trace::stop(folder_);
  late.reset();  // ended after
  ASSERT_TRUE(path.ok());
  EXPECT_TRUE(events(read(*path), "X").empty());
}

TEST_F(TraceTest, ASecondSessionIsAConflictAndTheSameOneIsNot) {
  EXPECT_EQ(trace::stop(folder_).status().code(), StatusCode::kConflict);
  ASSERT_TRUE(trace::start(folder_).ok());
  EXPECT_TRUE(trace::start(folder_).ok());
  EXPECT_EQ(trace::start(folder_ + "/other").code(), StatusCode::kConflict);
  EXPECT_EQ(trace::stop(folder_ + "/other").status().code(), StatusCode::kConflict);
  auto path = trace::stop(folder_);
  ASSERT_TRUE(path.ok());
  auto again = trace::stop(folder_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *path);
  EXPECT_FALSE(trace::recording());
  EXPECT_EQ(trace::start("").code(), StatusCode::kInvalidArgument);
}

TEST_F(TraceTest, AMissingFolderIsAnErrorAndTheRecorderGoesOn) {
  ASSERT_TRUE(trace::start(folder_ + "/missing").ok());
  { trace::Span span("lost", "test"); }
  EXPECT_FALSE(trace::stop(folder_ + "/missing").ok());
  ASSERT_TRUE(trace::start(folder_).ok());
  auto path = trace::stop(folder_);
  ASSERT_TRUE(path.ok());
  EXPECT_TRUE(events(read(*path), "X").empty());
}

TEST_F(TraceTest, AThreadKeepsSoManyEventsAndNoMore) {
  ASSERT_TRUE(trace::start(folder_).ok());
  for (std::size_t i = 0; i < trace::kMaxTraceEvents + 5; ++i) trace::Span span("x", "test");
  auto path = trace::stop(folder_);
  ASSERT_TRUE(path.ok());
  const json written = read(*path);
  EXPECT_EQ(events(written, "X").size(), trace::kMaxTraceEvents);
  EXPECT_NE(events(written, "M").back()["args"]["name"].get<std::string>().find("5 events left out"),
            std::string::npos);
}

TEST_F(TraceTest, FilesOfSeveralProcessesBecomeOne) {
  std::ofstream(folder_ + "/a.json") << "{\"traceEvents\":[\n{\"name\":\"a\",\"ph\":\"X\",\"ts\":1,\"dur\":1},\n"
                                        "{\"name\":\"b\",\"ph\":\"X\",\"ts\":2,\"dur\":1}\n]}\n";
  ASSERT_TRUE(trace::start(folder_).ok());
  { trace::Span span("c", "test"); }
  auto written = trace::stop(folder_);
  ASSERT_TRUE(written.ok());
  const std::string out = folder_ + "/all.json";
  ASSERT_TRUE(trace::merge_traces({folder_ + "/a.json", folder_ + "/none.json", *written}, out).ok());
  std::string names;
  for (const json& span : events(read(out), "X")) names += span["name"].get<std::string>();
  EXPECT_EQ(names, "abc");
  EXPECT_FALSE(trace::merge_traces({*written}, out).ok());  // never over a file that is there
  EXPECT_EQ(trace::merge_traces({folder_ + "/none.json"}, folder_ + "/x.json").code(), StatusCode::kNotFound);
}

TEST_F(TraceTest, ThreadsComeAndGoWhileSessionsBeginAndEnd) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&stop] {
      while (!stop.load()) {
        trace::Span span("work", "test");
        std::thread([] { trace::Span inner("inner", "test"); }).join();
      }
    });
  }
  for (int round = 0; round < 10; ++round) {
    const std::string folder = folder_ + "/" + std::to_string(round);
    std::filesystem::create_directory(folder);
    ASSERT_TRUE(trace::start(folder).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    auto path = trace::stop(folder);
    ASSERT_TRUE(path.ok());
    EXPECT_FALSE(read(*path).at("traceEvents").empty());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace millrace
