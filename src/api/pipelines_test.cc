// /v1/pipeline over real HTTP, in front of a pipeline that emits what the test wants; values as JSON.
#include "api/pipelines.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>

#include "api/value_json.h"
#include "base/json.h"
#include "base/log.h"
#include "http/client.h"
#include "http/testing/test_client.h"
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

TEST(ValueJson, ErrorsNameThePathAndTheWantedValue) {
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

// Answers at once, from inside submit(), as the input asks.
class EchoPipeline : public PipelineEngine {
 public:
  ReqId submit(PipelineRequest request, Sink sink) override {
    const ReqId id{7};
    last = request;
    const auto* how = request.inputs.get<std::string>();
    const auto end = [&](RequestEvent::End how_it_ends) {
      RequestEvent event{.id = id, .body = std::move(how_it_ends)};
      sink(event);
    };
    if (how != nullptr && *how == "refuse") {
      end({.status = Status(StatusCode::kResourceExhausted, "4096 requests are live")});
      return id;
    }
    for (uint64_t i = 0; i < 2; ++i) {
      RequestEvent chunk{.id = id, .stage = "decode", .chunk_id = i};
      chunk.body = RequestEvent::ValueChunk{.modality = "text", .value = Value("piece")};
      sink(chunk);
    }
    if (how != nullptr && *how == "fail") {
      end({.status = Status(StatusCode::kUnavailable, "stage 'x': gone")});
    } else {
      end({.state = RequestState::kCompleted, .result = request.inputs});
    }
    return id;
  }
  void set_prompt(ReqId, Result<wire::TokenizedRequest>, PlacementHint) override {}
  bool is_live(ReqId) const override { return false; }
  void abort(ReqId) override {}
  void cancel(ReqId) override {}
  void admin(wire::AdminAction action, int64_t timeout_ms,
             std::function<void(std::vector<wire::AdminReply>)> done) override {
    commands.emplace_back(action, timeout_ms);
    done(replies);
  }
  Health health() const override { return state; }
  int64_t request_timeout_s() const override { return 9; }
  const std::string& name() const override { return name_; }
  const std::string& picture() const override { return picture_; }

  Health state = {.ready = true};
  PipelineRequest last;
  std::vector<std::pair<wire::AdminAction, int64_t>> commands;
  std::vector<wire::AdminReply> replies;

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
  http::ClientResponse post(const std::string& body, const std::string& path = "/v1/pipeline") {
    auto response = http::Client({"127.0.0.1", server_.port()}, "").post(path, body);
    EXPECT_TRUE(response.ok());
    return response.ok() ? *response : http::ClientResponse{};
  }
  http::ClientResponse get(const std::string& path) {
    auto response = http::Client({"127.0.0.1", server_.port()}, "").get(path);
    EXPECT_TRUE(response.ok());
    return response.ok() ? *response : http::ClientResponse{};
  }

  http::Server server_{http::ServerOptions{.admin_without_key = true}};
  EchoPipeline engine_;
  PipelineContext context_{server_, engine_, "test"};
};

TEST_F(PipelineHttp, OneBody) {
  const auto answer = post(R"({"inputs":{"n":[1,2.5]},"terminals":["decode"],"timeout_s":1.5})");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, R"({"id":"7","result":{"n":[1,2.5]}})");
  EXPECT_EQ(engine_.last.options.terminals, std::vector<std::string>{"decode"});
  EXPECT_EQ(engine_.last.options.timeout_ms, 1500);
  EXPECT_EQ(post(R"({"inputs":1,"timeout_s":0.0001})").status, 200);
  EXPECT_EQ(engine_.last.options.timeout_ms, 1);  // not 0, which would be the pipeline's own limit
  EXPECT_EQ(post(R"({"inputs":1,"timeout_s":9})").status, 200);
  EXPECT_EQ(engine_.last.options.timeout_ms, 9000);
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
      {R"({"inputs":1,"terminals":[]})", "terminals is empty; wanted a list of 1 to 16 stages"},
      {R"({"inputs":1,"terminals":[1]})", "terminals holds a integer"},
      {R"({"inputs":1,"stream":"yes"})", "stream is a string; wanted"},
      {R"({"inputs":1,"timeout_s":-1})", "timeout_s is -1; wanted a number from 0"},
      {R"({"inputs":1,"timeout_s":9.5})", "timeout_s is 9.5; wanted a number from 0 to 9, request_timeout_s of"},
      {R"({"inputs":1,"terminals":"decode"})", "terminals is string; wanted a list of 1 to 16 stages"},
  };
  for (const auto& [body, wanted] : cases) {
    const auto answer = post(body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_NE(answer.body.find(wanted), std::string::npos) << answer.body;
  }
}

TEST_F(PipelineHttp, CommandsAreSentAndEachStageAnswersForItself) {
  engine_.replies = {{.stage = "front", .message = "recording"},
                     {.stage = "think-0", .code = StatusCode::kUnsupported, .message = "no cache"}};
  EXPECT_EQ(get("/start_profile").body,
            R"({"success":true,"replies":[{"stage":"front","ok":true,"message":"recording"},)"
            R"({"stage":"think-0","ok":false,"message":"no cache"}]})");
  EXPECT_EQ(post("", "/stop_profile").status, 200);
  EXPECT_EQ(post(R"({"timeout":2.5})", "/flush_cache").status, 200);
  EXPECT_EQ(get("/flush_cache?timeout=0.25").status, 200);
  using Action = wire::AdminAction;
  EXPECT_EQ(engine_.commands, (std::vector<std::pair<Action, int64_t>>{{Action::kStartProfile, 30'000},
                                                                       {Action::kStopProfile, 30'000},
                                                                       {Action::kFlushCache, 2500},
                                                                       {Action::kFlushCache, 250}}));
}

TEST_F(PipelineHttp, ACommandThatFailsNamesTheStageAndWhatTheOthersDid) {
  engine_.replies = {{.stage = "a", .message = "flushed"},
                     {.stage = "b", .code = StatusCode::kDeadline, .message = "did not answer within 10 ms"}};
  const auto late = get("/flush_cache");
  EXPECT_EQ(late.status, 504);
  EXPECT_NE(late.body.find("\"message\":\"b: did not answer within 10 ms\""), std::string::npos) << late.body;
  EXPECT_EQ(parsed(late.body)["replies"].size(), 2u);
  engine_.replies = {{.stage = "a", .code = StatusCode::kUnsupported, .message = "a keeps no cache"}};
  EXPECT_EQ(get("/flush_cache").status, 400);
  engine_.replies.clear();
  EXPECT_EQ(get("/flush_cache").status, 503);
  const std::size_t before = engine_.commands.size();
  for (const char* path : {"/flush_cache?timeout=-1", "/flush_cache?timeout=601", "/flush_cache?timeout=x"}) {
    EXPECT_EQ(get(path).status, 400) << path;
  }
  EXPECT_EQ(post(R"({"output_dir":"/etc"})", "/start_profile").status, 400);
  EXPECT_EQ(engine_.commands.size(), before);
}

// Emits so many events of 64 KiB from a thread of its own, each until it is taken.
class FloodPipeline : public EchoPipeline {
 public:
  static constexpr uint64_t kEvents = 1024;  // 64 MiB in all
  ~FloodPipeline() override {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  ReqId submit(PipelineRequest, Sink sink) override {
    thread_ = std::thread([this, sink] { flood(sink); });
    return ReqId{7};
  }
  void abort(ReqId) override { aborted.store(true); }
  std::atomic<uint64_t> taken{0}, refused{0};
  std::atomic<bool> aborted{false};

 private:
  void flood(const Sink& sink) {
    for (uint64_t i = 0; i <= kEvents; ++i) {
      RequestEvent event{.id = ReqId{7}, .stage = "x", .chunk_id = i};
      if (i == kEvents) {
        event.body = RequestEvent::End{.state = RequestState::kCompleted, .result = Value("all")};
      } else {
        const Value letters(std::string(64 << 10, static_cast<char>('a' + i % 26)));
        event.body = RequestEvent::ValueChunk{.modality = "text", .value = letters};
      }
      while (!stop_.load() && !aborted.load() && sink(event) == SinkAnswer::kFull) {
        ++refused;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ++taken;
    }
  }
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

class PipelineFlood : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log_init("test", LogLevel::kError); }
  void SetUp() override {
    add_pipeline_routes(context_);
    ASSERT_TRUE(server_.start().ok());
    client_ = std::make_unique<http::testing::Client>(server_.port(), 16 << 10);
    const std::string body = R"({"inputs":1,"stream":true})";
    client_->send(
        fmt::format("POST /v1/pipeline HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    "Content-Length: {}\r\n\r\n{}",
                    body.size(), body));
  }
  // No more is taken, though the client is asked again and again.
  bool stands_still() {
    uint64_t before = 0, asked = 0;
    return http::testing::eventually(
        [&] {
          if (engine_.taken.load() != before) before = engine_.taken.load(), asked = engine_.refused.load();
          return engine_.refused.load() > asked + 50;
        },
        60'000);
  }
  void TearDown() override { server_.stop(); }

  http::Server server_{http::ServerOptions{}};
  FloodPipeline engine_;
  PipelineContext context_{server_, engine_, "test"};
  std::unique_ptr<http::testing::Client> client_;
};

// What the kernel keeps of a connection is not ours to bound: some MiB.
TEST_F(PipelineFlood, AClientThatDoesNotReadStopsItsPipelineAndMayGoOn) {
  ASSERT_TRUE(stands_still());
  EXPECT_LT(engine_.taken.load(), FloodPipeline::kEvents / 4);
  EXPECT_FALSE(engine_.aborted.load());
  const http::testing::Reply reply = client_->read_reply();
  ASSERT_TRUE(reply.complete);
  // The last event is counted after it was taken, so the client may have it before.
  EXPECT_TRUE(http::testing::eventually([&] { return engine_.taken.load() == FloodPipeline::kEvents + 1; }, 10'000));
  std::size_t at = 0;
  for (uint64_t i = 0; i < FloodPipeline::kEvents; ++i) {
    const std::string wanted = fmt::format("\"chunk_id\":{},\"value\":\"{}", i, static_cast<char>('a' + i % 26));
    at = reply.body.find(wanted, at);
    ASSERT_NE(at, std::string::npos) << wanted;
  }
  EXPECT_TRUE(reply.body.ends_with("data: {\"id\":\"7\",\"result\":\"all\"}\n\ndata: [DONE]\n\n"));
}

TEST_F(PipelineFlood, AClientThatLeavesWithoutReadingCancels) {
  ASSERT_TRUE(stands_still());
  client_->reset();
  EXPECT_TRUE(http::testing::eventually([this] { return engine_.aborted.load(); }, 60'000));
}

TEST_F(PipelineHttp, ReportsItsState) {
  EXPECT_EQ(get("/ready").status, 200);
  EXPECT_EQ(get("/v1/pipeline").body, "<svg/>");
  engine_.state = {.reason = "think: starting"};
  EXPECT_EQ(get("/ready").status, 503);
  EXPECT_EQ(get("/live").status, 200);
  EXPECT_NE(get("/").body.find("echo"), std::string::npos);
  engine_.state.stages = {{.stage = "far", .metrics = {{"control_links_total{process=far-1,event=lost}", 3}}}};
  const std::string metrics = get("/metrics").body;
  EXPECT_NE(
      metrics.find("millrace:control_links_total{event=\"lost\",pipeline=\"echo\",process=\"far-1\",replica=\"0\","
                   "stage=\"far\"} 3\n"),
      std::string::npos)
      << metrics;
  engine_.state.stages = {
      {.stage = "think", .state = wire::StageState::kReady, .running = 3, .metrics = {{"held_bytes", 5}}}};
  EXPECT_NE(get("/metrics").body.find("millrace:held_bytes{pipeline=\"echo\",replica=\"0\",stage=\"think\"} 5\n"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::api
