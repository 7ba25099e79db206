// The events of the one JSON reader: their sequence, and what ends it. Which texts are JSON: json_test.cc.
#include "base/json_events.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

// Writes each event down; "stop" as a string or a key is refused.
class Log : public JsonHandler {
 public:
  Status null() override { return add("null"); }
  Status boolean(bool value) override { return add(value ? "true" : "false"); }
  Status negative(int64_t value) override { return add("-" + std::to_string(value)); }
  Status natural(uint64_t value) override { return add("+" + std::to_string(value)); }
  Status real(double value, const std::string& text) override { return add(fmt::format("real {} {}", value, text)); }
  Status string(std::string&& value) override {
    if (value == "stop") return error(StatusCode::kUnsupported, "not this one");
    return add("'" + value + "'");
  }
  Status start_object() override { return add("{"); }
  Status key(std::string&& name) override { return string(name + ":"); }
  Status end_object() override { return add("}"); }
  Status start_array() override { return add("["); }
  Status end_array() override { return add("]"); }

  std::string events;

 private:
  Status add(const std::string& event) {
    events += (events.empty() ? "" : " ") + event;
    return ok_status();
  }
};

TEST(JsonEvents, ComeInTheSequenceOfTheText) {
  Log log;
  const Status status = read_json(
      R"({"b":[1,-1,0,18446744073709551615,-9223372036854775808,1.50,1e2,true,null],"a":{"b":"é"},"b":[]})", log, 2);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(log.events,
            "{ 'b:' [ +1 --1 +0 +18446744073709551615 --9223372036854775808 real 1.5 1.50 real 100 1e2 true null ] "
            "'a:' { 'b:' 'é' } 'b:' [ ] }");
}

TEST(JsonEvents, AnErrorOfTheHandlerEndsTheReading) {
  Log log;
  const Status status = read_json(R"([1,"stop",2,)", log, 2);
  EXPECT_EQ(status.to_string(), error(StatusCode::kUnsupported, "not this one").to_string());
  EXPECT_EQ(log.events, "[ +1");
}

TEST(JsonEvents, NestingOverTheLimitIsRefusedWhereItBegins) {
  Log log;
  EXPECT_EQ(read_json("[{},[[1]]]", log, 2).message(), "JSON nested deeper than 2 levels");
  EXPECT_EQ(log.events, "[ { } [");
  EXPECT_TRUE(read_json("[{},[[1]]]", log, 3).ok());
}

TEST(JsonEvents, AMalformedTextIsNamedByItsByteAndNotQuoted) {
  Log log;
  EXPECT_EQ(read_json("[\"secret\",}", log, 9).message(), "malformed JSON at byte 11; wanted one document in UTF-8");
  EXPECT_EQ(read_json(std::string_view("1\0 2", 4), log, 9).message(),
            "malformed JSON at byte 2; wanted one document in UTF-8");
  EXPECT_EQ(read_json("", log, 9).message(), "malformed JSON at byte 1: it is empty");
}

}  // namespace
}  // namespace millrace
