// traceparent as W3C Trace Context, level 1, defines it; the examples are the standard's.
#include "base/trace_context.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

const std::string kGood = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, IsReadFromItsHeader) {
  const auto context = parse_traceparent(kGood);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(context->span_id, "b7ad6b7169203331");
  EXPECT_TRUE(context->sampled);
  EXPECT_FALSE(parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")->sampled);
  EXPECT_FALSE(parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02")->sampled);
  EXPECT_TRUE(parse_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff")->sampled);
  // A later version may have more fields.
  EXPECT_TRUE(parse_traceparent("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what").has_value());
}

TEST(TraceContext, AMalformedHeaderIsNone) {
  const std::string zeros(32, '0');
  for (const std::string& header :
       {std::string(), kGood.substr(1), kGood + "0", kGood + "-what", "ff" + kGood.substr(2), "0g" + kGood.substr(2),
        "00-" + zeros + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + zeros.substr(16) + "-01",
        std::string("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01"), "cc" + kGood.substr(2) + ".what",
        std::string("00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        std::string("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x")}) {
    EXPECT_FALSE(parse_traceparent(header).has_value()) << header;
  }
}

TEST(TraceContext, NewIdsAreWellFormedAndDiffer) {
  const std::string trace = new_trace_id(), span = new_span_id();
  const std::string header = make_traceparent(trace, span);
  EXPECT_EQ(header.size(), kTraceparentBytes);
  const auto context = parse_traceparent(header);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, trace);
  EXPECT_EQ(context->span_id, span);
  EXPECT_TRUE(context->sampled);
  EXPECT_NE(trace, new_trace_id());
  EXPECT_NE(span, new_span_id());
}

}  // namespace
}  // namespace millrace
