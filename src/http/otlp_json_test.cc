// The JSON of spans, against the names and types of opentelemetry-proto's JSON mapping.
#include "http/otlp_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace millrace::http {
namespace {

TEST(OtlpJson, HasSpansAsTheProtocolNamesThem) {
  const std::vector<Span> spans = {{.trace_id = "0af7651916cd43dd8448eb211c80319c",
                                    .span_id = "b7ad6b7169203331",
                                    .name = "POST /x \"y\"",
                                    .kind = SpanKind::kServer,
                                    .begin_ns = 1'700'000'000'000'000'001,
                                    .end_ns = 1'700'000'000'000'000'002,
                                    .attributes = {{"text", "a"},
                                                   {"whole", int64_t{-5}},
                                                   {"part", 0.5},
                                                   {"list", std::vector<std::string>{"a", "b"}}}},
                                   {.trace_id = "0af7651916cd43dd8448eb211c80319c",
                                    .span_id = "1111111111111111",
                                    .parent_id = "b7ad6b7169203331",
                                    .name = "queue",
                                    .failed = true,
                                    .error = "no \n place"}};
  const Json body = parse_json(otlp_json({{"service.name", "millrace"}}, "0.1", spans)).value();
  const Json& all = body["resourceSpans"][0];
  EXPECT_EQ(all["resource"]["attributes"],
            Json::parse(R"([{"key": "service.name", "value": {"stringValue": "millrace"}}])"));
  EXPECT_EQ(all["scopeSpans"][0]["scope"], Json::parse(R"({"name": "millrace", "version": "0.1"})"));
  const Json& written = all["scopeSpans"][0]["spans"];
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0], Json::parse(R"({"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331",
      "name": "POST /x \"y\"", "kind": 2, "startTimeUnixNano": "1700000000000000001",
      "endTimeUnixNano": "1700000000000000002", "attributes": [{"key": "text", "value": {"stringValue": "a"}},
      {"key": "whole", "value": {"intValue": "-5"}}, {"key": "part", "value": {"doubleValue": 0.5}},
      {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"stringValue": "b"}]}}}]})"));
  EXPECT_EQ(written[1]["parentSpanId"], "b7ad6b7169203331");
  EXPECT_EQ(written[1]["status"], Json::parse(R"({"code": 2, "message": "no \n place"})"));
}

}  // namespace
}  // namespace millrace::http
