// /v1/pipeline over real HTTP, in front of a pipeline that says what the test tells it to say; values as JSON.
#include "api/pipelines.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "api/value_json.h"
#include "base/json.h"
#include "base/log.h"
#include "http/client.h"
#include "payload/value.h"

namespace millrace::api {
namespace {

Json parsed(std::string_view text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

std::string written(const Value& value) {
  std::string out;
  append_value(out, value);
  return out;
}

// Bytes by hand: {1.0f, -2.0f} in base64 is AACAPwAAAMA= (Python: base64.b64encode(struct.pack("<2f", 1, -2))).
TEST(ValueJson, EveryKindComesBack) {
  const std::string text =
      R"({"a":null,"b":[true,false,-9223372036854775808,3,3.0,0.1,1e+300],"c":{"$bytes":"AAH/"},)"
      R"("d":{"$tensor":{"dtype":"F32","shape":[2,1],"base64":"AACAPwAAAMA="}},"e":{"$number":"nan"},)"
      R"("f":{"$number":"-inf"},"g":{},"h":[],"i":{"$tensor":{"dtype":"U8","shape":[0,3],"base64":""}},"j":"é\"\n"})";
  const auto value = value_from_json(parsed(text), "inputs");
  ASSERT_TRUE(value.ok()) << value.status().message();
  const auto* tensor = value->find("d")->get<SharedTensor>();
  ASSERT_NE(tensor, nullptr);
  float first[2];
  std::memcpy(first, tensor->bytes.data(), sizeof first);
  EXPECT_EQ(first[0], 1.0f);
  EXPECT_EQ(first[1], -2.0f);
  EXPECT_EQ(value->find("c")->get<ValueBytes>()->bytes, std::string("\0\1\xff", 3));
  EXPECT_TRUE(value->find("b")->get<ValueList>()->at(3).is<int64_t>());
  EXPECT_TRUE(value->find("b")->get<ValueList>()->at(4).is<double>());
  const auto again = value_from_json(parsed(written(*value)), "again");
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(same_bits(*value, *again)) << written(*value) << "\n" << written(*again);
}

TEST(ValueJson, ComplaintsNameThePlaceAndTheWish) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"x":[18446744073709551615]})", "in.x[0] is 18446744073709551615; wanted an integer of 64 bits"},
      {R"({"$tensor":3})", "in.$tensor is a integer; wanted an object"},
      {R"({"$tensor":{"dtype":"F33","shape":[],"base64":""}})", "in.$tensor.dtype is 'F33'"},
      {R"({"$tensor":{"dtype":"F32","shape":[2],"base64":"AACAPw=="}})", "has 4 bytes; wanted those of F32 [2]"},
      {R"({"$tensor":{"dtype":"F32","shape":[-1],"base64":"AACAPw=="}})", "shape holds -1; wanted extents of 0 to"},
      {R"({"$tensor":{"dtype":"U8","shape":[4,4,4,4,4,4,4,4,4],"base64":"AACAPw=="}})", "no list of at most 8 extents"},
      {R"({"$tensor":{"dtype":"U8","shape":[1099511627776,1099511627776],"base64":"AACAPw=="}})",
       "has 4 bytes; wanted"},
      {R"({"$tensor":{"dtype":"U8","base64":"AACAPw=="}})", "shape is missing"},
      {R"({"$bytes":"AAA"})", "in.$bytes has 3 characters of base64; wanted a multiple of 4"},
      {R"({"$bytes":"A=AA"})", "in.$bytes is not base64"},
      {R"({"$bytes":"****"})", "in.$bytes is not base64"},
      {R"({"$number":"Infinity"})", "in.$number is 'Infinity'; wanted nan, inf or -inf"},
  };
  for (const auto& [text, wanted] : cases) {
    const auto value = value_from_json(parsed(text), "in");
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_NE(value.status().message().find(wanted), std::string::npos) << value.status().message() << "\n" << wanted;
  }
}

// Answers at once, from inside submit(), as the input says.
class EchoPipeline : public PipelineEngine {
 public:
  ReqId submit(PipelineRequest request, Sink sink) override {
    const ReqId id{7};
    last = request;
    const auto* how = request.inputs.get<std::string>();
    if (how != nullptr && *how == "refuse") {
      sink({.id = id, .end = true, .status = Status(StatusCode::kResourceExhausted, "4096 requests are live")});
      return id;
    }
    for (uint64_t i = 0; i < 2; ++i) {
      sink({.id = id, .stage = "decode", .modality = "text", .chunk_id = i, .value = Value("piece")});
    }
    const bool fail = how != nullptr && *how == "fail";
    sink({.id = id,
          .end = true,
          .value = request.inputs,
          .status = fail ? Status(StatusCode::kUnavailable, "stage 'x': gone") : ok_status()});
    return id;
  }
  void cancel(ReqId) override {}
  Health health() const override { return state; }
  const std::string& name() const override { return name_; }
  const std::string& picture() const override { return picture_; }

  Health state = {.ready = true};
  PipelineRequest last;

 private:
  std::string name_ = "echo", picture_ = "<svg/>";
};

class PipelineHttp : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    add_pipeline_routes(context_);
    ASSERT_TRUE(server_.start().ok());
  }
  void TearDown() override { server_.stop(); }
  http::ClientResponse post(const std::string& body) {
    auto response = http::Client({"127.0.0.1", server_.port()}, "").post("/v1/pipeline", body);
    EXPECT_TRUE(response.ok());
    return response.ok() ? *response : http::ClientResponse{};
  }
  http::ClientResponse get(const std::string& path) {
    auto response = http::Client({"127.0.0.1", server_.port()}, "").get(path);
    EXPECT_TRUE(response.ok());
    return response.ok() ? *response : http::ClientResponse{};
  }

  http::Server server_{http::ServerOptions{}};
  EchoPipeline engine_;
  PipelineContext context_{server_, engine_, "test"};
};

TEST_F(PipelineHttp, OneBody) {
  const auto answer = post(R"({"inputs":{"n":[1,2.5]},"terminals":["decode"],"timeout_s":1.5})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"id":"7","result":{"n":[1,2.5]}})");
  EXPECT_EQ(engine_.last.terminals, std::vector<std::string>{"decode"});
  EXPECT_EQ(engine_.last.timeout_ms, 1500);
}

TEST_F(PipelineHttp, EventsEndWithTheResultAndDone) {
  const auto answer = post(R"({"inputs":5,"stream":true})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body,
            "data: {\"id\":\"7\",\"stage\":\"decode\",\"modality\":\"text\",\"chunk_id\":0,\"value\":\"piece\"}\n\n"
            "data: {\"id\":\"7\",\"stage\":\"decode\",\"modality\":\"text\",\"chunk_id\":1,\"value\":\"piece\"}\n\n"
            "data: {\"id\":\"7\",\"result\":5}\n\ndata: [DONE]\n\n");
}

TEST_F(PipelineHttp, FailuresAreStatusesBeforeTheFirstByteAndEventsAfterIt) {
  EXPECT_EQ(post(R"({"inputs":"refuse","stream":true})").status, 429);
  EXPECT_EQ(post(R"({"inputs":"fail"})").status, 503);
  const auto streamed = post(R"({"inputs":"fail","stream":true})");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_NE(streamed.body.find("\"error\":{\"message\":\"stage 'x': gone\""), std::string::npos) << streamed.body;
  EXPECT_EQ(streamed.body.find("[DONE]"), std::string::npos);
}

TEST_F(PipelineHttp, BadBodiesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "inputs is missing"},
      {R"({"inputs":1,"terminals":[]})", "terminals is array; wanted a list of 1 to 16 stages"},
      {R"({"inputs":1,"terminals":[1]})", "terminals holds a integer"},
      {R"({"inputs":1,"stream":"yes"})", "stream is a string; wanted"},
      {R"({"inputs":1,"timeout_s":-1})", "timeout_s is -1; wanted a number from 0"},
  };
  for (const auto& [body, wanted] : cases) {
    const auto answer = post(body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_NE(answer.body.find(wanted), std::string::npos) << answer.body;
  }
}

TEST_F(PipelineHttp, SaysHowItIs) {
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_EQ(get("/v1/pipeline").body, "<svg/>");
  engine_.state = {.reason = "think: starting"};
  EXPECT_EQ(get("/ready").status, 503);
  EXPECT_EQ(get("/live").status, 200);
  EXPECT_NE(get("/").body.find("echo"), std::string::npos);
  engine_.state.stages = {
      {.stage = "think", .state = wire::StageState::kReady, .running = 3, .metrics = {{"held_bytes", 5}}}};
  EXPECT_NE(get("/metrics").body.find("millrace:held_bytes{pipeline=\"echo\",replica=\"0\",stage=\"think\"} 5\n"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::api
