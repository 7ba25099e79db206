// Spans on their way to a collector that the test plays: batched, tried again, dropped, never waited for.
#include "http/span_exporter.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/log.h"
#include "http/server.h"
#include "http/testing/test_client.h"

namespace millrace::http {
namespace {

constexpr int kLongMs = 60'000;

template <typename Condition>
bool wait_until(Condition condition) {
  return testing::eventually(condition, kLongMs);
}

class SpanExporterTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kOff); }

  void SetUp() override {
    collector_ = std::make_unique<Server>(ServerOptions{});
    collector_->add_route(
        {.method = "POST", .pattern = "/v1/traces", .handler = [this](RequestPtr request, ResponderPtr responder) {
           const std::lock_guard lock(mutex_);
           ++posts_;
           if (refusals_ > 0) {
             --refusals_;
             responder->send({.status = refusal_, .body = "{}"});
             return;
           }
           const Json body = parse_json(request->body).value();
           for (const Json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
             names_.push_back(span["name"]);
           }
           if (const std::string* key = request->headers.find("x-key")) key_ = *key;
           responder->send({.body = "{}"});
         }});
    ASSERT_TRUE(collector_->start().ok());
  }

  std::unique_ptr<SpanExporter> make(std::vector<std::string> headers = {}) {
    return SpanExporter::make({.url = fmt::format("http://127.0.0.1:{}/v1/traces", collector_->port()),
                               .headers = std::move(headers),
                               .gather = std::chrono::milliseconds(1),
                               .retry = std::chrono::milliseconds(1)})
        .value();
  }
  void refuse(int count, int status) {
    const std::lock_guard lock(mutex_);
    refusals_ = count, refusal_ = status;
  }
  int posts() {
    const std::lock_guard lock(mutex_);
    return posts_;
  }
  std::vector<std::string> names() {
    const std::lock_guard lock(mutex_);
    return names_;
  }

  std::unique_ptr<Server> collector_;
  std::mutex mutex_;
  std::vector<std::string> names_;
  std::string key_;
  int posts_ = 0, refusals_ = 0, refusal_ = 0;
};

Span named(std::string name) {
  return {.trace_id = std::string(32, '1'), .span_id = std::string(16, '2'), .name = std::move(name)};
}

TEST_F(SpanExporterTest, SpansArriveInTheirSequence) {
  const auto exporter = make({"x-key: secret"});
  for (int i = 0; i < 1000; ++i) exporter->add(named(std::to_string(i)));
  ASSERT_TRUE(wait_until([&] { return exporter->exported() == 1000; }));
  const std::vector<std::string> seen = names();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], std::to_string(i));
  EXPECT_EQ(key_, "secret");
  EXPECT_EQ(exporter->dropped(), 0u);
}

TEST_F(SpanExporterTest, ABusyCollectorIsAskedAgain) {
  refuse(kExportAttempts - 1, 503);
  const auto exporter = make();
  exporter->add(named("a"));
  ASSERT_TRUE(wait_until([&] { return exporter->exported() == 1; }));
  EXPECT_EQ(posts(), kExportAttempts);
}

TEST_F(SpanExporterTest, WhatACollectorRefusesIsDroppedAndCounted) {
  refuse(1, 400);
  const auto exporter = make();
  exporter->add(named("a"));
  ASSERT_TRUE(wait_until([&] { return exporter->dropped() == 1; }));
  EXPECT_EQ(posts(), 1);  // another attempt would fail too
  refuse(kExportAttempts, 503);
  exporter->add(named("b"));
  ASSERT_TRUE(wait_until([&] { return exporter->dropped() == 2; }));
  exporter->add(named("c"));
  ASSERT_TRUE(wait_until([&] { return exporter->exported() == 1; }));
  EXPECT_EQ(names(), std::vector<std::string>{"c"});
}

TEST_F(SpanExporterTest, TheEndSendsWhatIsQueued) {
  auto exporter = make();
  for (int i = 0; i < 100; ++i) exporter->add(named("x"));
  exporter.reset();
  EXPECT_EQ(names().size(), 100u);
}

TEST_F(SpanExporterTest, AnAbsentCollectorDelaysNothing) {
  collector_.reset();
  auto exporter =
      SpanExporter::make({.url = "http://127.0.0.1:1/v1/traces", .retry = std::chrono::milliseconds(1)}).value();
  for (std::size_t i = 0; i < 2 * kMaxQueuedSpans + kMaxSpansPerExport; ++i) exporter->add(named("x"));
  EXPECT_GT(exporter->dropped(), 0u);  // the queue has its limit
  exporter.reset();
}

TEST_F(SpanExporterTest, AUrlMustBeOne) {
  for (const char* url : {"", "ftp://host/x", "no url", "file:///etc/passwd", "://"}) {
    EXPECT_EQ(SpanExporter::make({.url = url}).status().code(), StatusCode::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace millrace::http
