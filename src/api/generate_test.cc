// POST /generate in the shape that clients of SGLang know, and the orders of an operator.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "api/testing/api_harness.h"
#include "base/nearest.h"

namespace millrace::api::testing {
namespace {

using wire::FinishReason;

constexpr char kGenerate[] = "/generate";

class GenerateTest : public ApiHarness {
 protected:
  // A whole answer of one prompt: token 7 "Hi", token 8 " you", end token 3.
  void play(std::size_t index, bool accept = true) {
    if (accept) engine_.accept(index);
    engine_.token(index, 7, "Hi", {5, 1, 2, 1}, -0.5, {{9, -0.25}}, {-6.0});
    engine_.token(index, 8, " you", {5, 2, 2, 1}, -1.5, {{8, -1.5}}, {-7.0});
    wire::TextDelta last{.id = ReqId{index + 1}, .usage = {5, 3, 2, 1, 4, 0.25}, .weight_version = 6};
    last.finish = wire::Finish{.reason = FinishReason::kStop, .matched_token = 3};
    last.logprobs = {FakeEngine::position(3, -2.5, {{3, -2.5}}, {-8.0})};
    engine_.deliver(index, last);
  }
};

TEST_F(GenerateTest, OneText) {
  auto answer = post(kGenerate, R"({"text":"hello","rid":"mine","sampling_params":{"temperature":0}})");
  wait_submitted(1);
  EXPECT_EQ(std::get<TextPrompt>(*engine_.request(0).prompt).text, "hello");
  EXPECT_EQ(engine_.request(0).max_tokens, 128);
  play(0);
  const Json body = answer.get().json();
  EXPECT_EQ(body["text"], "Hi you");
  EXPECT_EQ(body["output_ids"], Json({7, 8, 3}));
  Json meta = body["meta_info"];
  EXPECT_GT(meta["e2e_latency"].get<double>(), 0);
  meta.erase("e2e_latency");
  EXPECT_EQ(meta, Json::parse(R"({"id":"mine","finish_reason":{"type":"stop","matched":3},"prompt_tokens":5,
    "completion_tokens":3,"cached_tokens":2,"cached_tokens_details":{"device":1,"host":1},"transferred_tokens":0,"weight_version":"6",
    "weight_versions":[{"version":"6","start":0,"end":3}],"num_retractions":4,"queue_time":0.25})"));
}

TEST_F(GenerateTest, FinishReasons) {
  const std::pair<wire::Finish, const char*> cases[] = {
      {{.reason = FinishReason::kLength}, R"({"type":"length","length":3})"},
      {{.reason = FinishReason::kStop, .matched_text = "END"}, R"({"type":"stop","matched":"END"})"},
      {{.reason = FinishReason::kAborted}, R"({"type":"abort","message":"the request was aborted"})"},
      {{.reason = FinishReason::kAborted, .message = "outranked"}, R"({"type":"abort","message":"outranked"})"},
  };
  for (const auto& [finish, wanted] : cases) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kGenerate, R"({"input_ids":[1,2]})");
    wait_submitted(index + 1);
    engine_.accept(index);
    engine_.end(index, finish, 3);
    EXPECT_EQ(answer.get().json()["meta_info"]["finish_reason"], Json::parse(wanted));
  }
}

TEST_F(GenerateTest, LogprobsOfThePromptAndTheText) {
  auto answer = post(kGenerate, R"({"input_ids":[1,2],"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":1,
                                    "token_ids_logprob":[11],"return_text_in_logprobs":true})");
  wait_submitted(1);
  const wire::SamplingParams params = engine_.request(0).sampling;
  EXPECT_EQ(params.top_logprobs, 1);
  EXPECT_EQ(params.prompt_logprobs_from, 0);
  EXPECT_EQ(params.logprob_token_ids, std::vector<int32_t>{11});
  engine_.accept(0);
  wire::TextDelta prompt{.id = ReqId{1}, .usage = {5, 0, 2}};
  prompt.prompt_logprobs = {FakeEngine::position(1, std::nullopt), FakeEngine::position(2, -4.0, {{5, -0.5}}, {-9.0})};
  engine_.deliver(0, prompt);
  play(0, false);
  const Json meta = answer.get().json()["meta_info"];
  EXPECT_EQ(meta["input_token_logprobs"], Json::parse(R"([[null,1,"t1"],[-4.0,2,"t2"]])"));
  EXPECT_EQ(meta["input_top_logprobs"], Json::parse(R"([null,[[-0.5,5,"t5"]]])"));
  EXPECT_EQ(meta["input_token_ids_logprobs"], Json::parse(R"([null,[[-9.0,11,"t11"]]])"));
  EXPECT_EQ(meta["output_token_logprobs"], Json::parse(R"([[-0.5,7,"t7"],[-1.5,8,"t8"],[-2.5,3,"t3"]])"));
  EXPECT_EQ(meta["output_top_logprobs"], Json::parse(R"([[[-0.25,9,"t9"]],[[-1.5,8,"t8"]],[[-2.5,3,"t3"]]])"));
  EXPECT_EQ(meta["output_token_ids_logprobs"],
            Json::parse(R"([[[-6.0,11,"t11"]],[[-7.0,11,"t11"]],[[-8.0,11,"t11"]]])"));
}

TEST_F(GenerateTest, StreamsRepeatEverythingUnlessAskedNotTo) {
  for (bool once : {false, true}) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kGenerate, std::string(R"({"text":"x","stream":true,"return_logprob":true,"stream_output":)") +
                                      (once ? "true}" : "false}"));
    wait_submitted(index + 1);
    play(index);
    const Answer got = answer.get();
    ASSERT_EQ(got.events.size(), 4u);
    EXPECT_EQ(got.events.back(), "[DONE]");
    std::string text;
    std::vector<int32_t> ids;
    std::size_t logprobs = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const Json event = parsed(got.events[i]);
      EXPECT_FALSE(event.contains("index"));
      EXPECT_EQ(event["meta_info"]["finish_reason"].is_null(), i < 2);
      const auto chunk = event["output_ids"].get<std::vector<int32_t>>();
      if (!once) {
        EXPECT_TRUE(event["text"].get<std::string>().starts_with(text));
        text.clear(), ids.clear(), logprobs = 0;
      }
      text += event["text"].get<std::string>();
      ids.insert(ids.end(), chunk.begin(), chunk.end());
      logprobs += event["meta_info"]["output_token_logprobs"].size();
    }
    EXPECT_EQ(text, "Hi you");
    EXPECT_EQ(ids, (std::vector<int32_t>{7, 8, 3}));
    EXPECT_EQ(logprobs, 3u);
  }
}

TEST_F(GenerateTest, BatchesAndSeveralChoices) {
  auto answer = post(kGenerate, R"({"text":["a","b"],"rid":"r","return_logprob":[false,true],
                                    "sampling_params":[{"n":2,"max_new_tokens":4},{"n":2,"max_new_tokens":null}]})");
  wait_submitted(4);
  EXPECT_EQ(engine_.request(1).max_tokens, 4);
  EXPECT_FALSE(engine_.request(2).max_tokens.has_value());
  EXPECT_EQ(engine_.request(1).sampling.top_logprobs, -1);
  EXPECT_EQ(engine_.request(2).sampling.top_logprobs, 0);
  for (std::size_t i : {3u, 1u, 0u, 2u}) play(i);
  const Json body = answer.get().json();
  ASSERT_EQ(body.size(), 4u);
  const char* ids[] = {"r_0_0", "r_0_1", "r_1_0", "r_1_1"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(body[i]["meta_info"]["id"], ids[i]);
    EXPECT_EQ(body[i]["meta_info"].contains("output_token_logprobs"), i >= 2);
  }
  // A list of one prompt is answered by a list; in a stream every event has its index.
  const std::size_t index = engine_.submitted();
  auto one = post(kGenerate, R"({"input_ids":[[1,2]],"stream":true})");
  wait_submitted(index + 1);
  play(index);
  const Answer got = one.get();
  EXPECT_EQ(parsed(got.events[0])["index"], 0);
  auto list = post(kGenerate, R"({"text":["a"]})");
  wait_submitted(index + 2);
  play(index + 1);
  EXPECT_TRUE(list.get().json().is_array());
}

TEST_F(GenerateTest, RefusalsNameTheFieldAndReachNoEngine) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "text and input_ids are both missing"},
      {R"({"text":"a","input_ids":[1]})", "both given"},
      {R"({"text":""})", "text is empty"},
      {R"({"text":[]})", "text has 0 prompts"},
      {R"({"text":["a",""]})", "text[1] is empty"},
      {R"({"text":7})", "text is of type integer"},
      {R"({"input_ids":[]})", "input_ids has 0 ids"},
      {R"({"input_ids":[[]]})", "input_ids[0] has 0 ids"},
      {R"({"input_ids":[100]})", "input_ids[0] is 100"},
      {R"({"input_ids":[-1]})", "input_ids[0] is -1"},
      {R"({"text":"a","sampling_params":[{}]})", "sampling_params is of type array for a single prompt"},
      {R"({"text":["a","b"],"sampling_params":[{}]})", "sampling_params has 1 entries for 2 prompts"},
      {R"({"text":["a","b"],"sampling_params":[{"n":1},{"n":2}]})", "sampling_params.n is 1 here and 2 there"},
      {R"({"text":"a","sampling_params":7})", "sampling_params is of type integer"},
      {R"({"text":"a","sampling_params":{"max_tokens":4}})", "; perhaps 'max_new_tokens'"},
      {R"({"text":"a","sampling_params":{"seed":4}})", "; perhaps 'sampling_seed'"},
      {R"({"text":"a","sampling_params":{"temprature":1}})", "; perhaps 'temperature'"},
      {R"({"text":"a","sampling_params":{"top_p":2}})", "sampling_params.top_p is 2; wanted a number in (0, 1]"},
      {R"({"text":"a","sampling_params":{"structural_tag":7}})", "sampling_params.structural_tag is no object"},
      {R"({"text":"a","sampling_params":{"regex":""}})", "sampling_params.regex is empty"},
      {R"({"text":"a","sampling_params":{"n":129}})", "[1, 128]"},
      {R"({"text":["a","b","c"],"sampling_params":{"n":100}})", "sampling_params.n is 100 for 3 prompts"},
      {R"({"text":"a","top_logprobs_num":21})", "top_logprobs_num is 21"},
      {R"({"text":"a","logprob_start_len":-2})", "logprob_start_len is -2"},
      {R"({"text":"a","logprob_start_len":64})", "[-1, 63]"},
      {R"({"text":"a","token_ids_logprob":[[1]]})", "token_ids_logprob has [1]"},
      {R"({"text":"a","token_ids_logprob":[100]})", "token_ids_logprob has 100"},
      {R"({"text":"a","return_logprob":1})", "return_logprob"},
      {R"({"text":"a","image_data":"x"})", "image_data is not supported"},
      {R"({"text":"a","rid":""})", "rid has 0 bytes"},
      {R"({"text":["a","b"],"rid":["x","x"]})", "rid has 'x' twice"},
      {R"({"text":["a","b"],"rid":["x"]})", "rid has 1 entries"},
      {R"({"text":"a","timeout_s":0})", "timeout_s is 0"},
  };
  for (const auto& [body, wanted] : cases) {
    for (const char* stream : {"", "\"stream\":true,"}) {
      const Answer got = post(kGenerate, "{" + std::string(stream) + (body + 1)).get();
      if (std::string(body) == "{}" && *stream) continue;  // a trailing comma is another error
      EXPECT_EQ(got.status, 400) << body;
      const std::string message = got.json()["error"]["message"];
      EXPECT_NE(message.find(wanted), std::string::npos) << body << "\n" << message;
    }
  }
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(GenerateTest, AnErrorOfTheEngineBeforeTheFirstEventIsARealStatus) {
  auto answer = post(kGenerate, R"({"text":"x","stream":true})");
  wait_submitted(1);
  engine_.deliver(0, FakeEngine::error_of(0, Status(StatusCode::kResourceExhausted, "the queue is full")));
  const Answer got = answer.get();
  EXPECT_EQ(got.status, 429);
  EXPECT_EQ(got.json()["error"]["message"], "the queue is full");
}

TEST_F(GenerateTest, AnErrorOfTheEngineHasTheClientsName) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"prompt_logprobs_from is 9; wanted -1..2", "logprob_start_len", "logprob_start_len is 9; wanted -1..2"},
      {"min_tokens is 9; wanted 0..8", "sampling_params.min_new_tokens",
       "sampling_params.min_new_tokens is 9; wanted 0..8"},
      {"temperature is 9; wanted 1", "temperature", "temperature is 9; wanted 1"}};
  for (const auto& [message, param, shown] : cases) {
    const std::size_t index = engine_.submitted();
    auto answer = post(kGenerate, R"({"text":"x"})");
    wait_submitted(index + 1);
    engine_.deliver(index, FakeEngine::error_of(index, invalid_argument("{}", message)));
    const Json error = answer.get().json()["error"];
    EXPECT_EQ(error["message"], shown);
    EXPECT_EQ(error["param"], param);
  }
}

TEST_F(GenerateTest, AbortsReachExactlyTheNamed) {
  auto first = post(kGenerate, R"({"text":"x","rid":"job"})");
  wait_submitted(1);
  auto second = post(kGenerate, R"({"text":["x","y"],"rid":"job_9","stream":true})");
  wait_submitted(3);
  auto chat = post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"rid":"talk"})");
  wait_submitted(4);
  for (std::size_t i = 0; i < 4; ++i) engine_.accept(i);
  const auto abort = [&](const char* body) { return post("/abort_request", body).get().json()["aborted"]; };
  EXPECT_EQ(abort(R"({"rid":"jo"})"), 0);  // a prefix is no name
  EXPECT_EQ(abort(R"({"rid":"job_9_1"})"), 1);
  EXPECT_EQ(abort(R"({"rid":"job_9_1"})"), 0);
  const Answer taken = post(kGenerate, R"({"text":"x","rid":"job"})").get();
  EXPECT_EQ(taken.status, 409);
  EXPECT_EQ(taken.json()["error"]["param"], "rid");
  EXPECT_EQ(engine_.submitted(), 4u);
  EXPECT_EQ(abort(R"({"rid":"job"})"), 1);
  EXPECT_EQ(first.get().json()["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(abort(R"({"abort_all":true})"), 2);
  const Answer batch = second.get();
  EXPECT_EQ(parsed(batch.events[0])["index"], 1);
  EXPECT_EQ(parsed(batch.events[1])["meta_info"]["finish_reason"]["type"], "abort");
  EXPECT_EQ(batch.events.back(), "[DONE]");
  const Json talk = chat.get().json();
  EXPECT_EQ(talk["id"], "talk");
  EXPECT_EQ(talk["choices"][0]["finish_reason"], "abort");
  EXPECT_EQ(post("/abort_request", "{}").get().status, 400);
  // The name is free again.
  auto again = post(kGenerate, R"({"text":"x","rid":"job"})");
  wait_submitted(5);
  play(4);
  EXPECT_EQ(again.get().status, 200);
  EXPECT_EQ(context_->state->live.size(), 0u);
}

TEST_F(GenerateTest, AStreamThatRepeatsTooMuchEndsWithAnError) {
  auto answer = post(kGenerate, R"({"text":"x","stream":true})");
  wait_submitted(1);
  engine_.accept(0);
  engine_.text(0, std::string(600u << 10, 'a'), 1);
  const Answer got = answer.get();
  ASSERT_EQ(got.events.size(), 1u);
  EXPECT_NE(got.events[0].find("stream_output"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return engine_.aborts() == std::vector<std::size_t>{0}; }));
}

// Each event repeats the text so far, 100 KB and more: together many times what may be unsent.
TEST_F(GenerateTest, AReaderThatIsBehindMissesRepeatsAlone) {
  for (const bool once : {false, true}) {
    http::Client client({"127.0.0.1", server_->port()}, "");
    std::mutex reading;  // held: the client reads nothing more
    std::unique_lock hold(reading);
    std::vector<std::string> events;
    const std::size_t index = engine_.submitted();
    std::thread reader([&] {
      http::SseReader sse;
      const std::string body = R"({"text":"x","stream":true,"stream_output":)" + std::string(once ? "true}" : "false}");
      (void)client.post(kGenerate, body, [&](std::string_view bytes) {
        std::lock_guard lock(reading);
        sse.push(bytes, [&](std::string_view event) {
          events.emplace_back(event);
          return true;
        });
        return true;
      });
    });
    wait_submitted(index + 1);
    engine_.accept(index);
    constexpr int kEvents = 300;
    std::string text = once ? "" : std::string(100'000, 'a');
    if (!once) engine_.text(index, text, 1);
    for (int i = 0; i < kEvents; ++i) {
      engine_.text(index, std::to_string(i) + ",", i + 2);
      text += std::to_string(i) + ",";
    }
    hold.unlock();
    engine_.end(index, {.reason = FinishReason::kLength}, kEvents + 2, "end");
    reader.join();
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(events.back(), "[DONE]");
    events.pop_back();
    std::string got;
    for (const std::string& event : events) {
      const std::string part = parsed(event)["text"];
      got = once ? got + part : part;
    }
    EXPECT_EQ(got, text + "end");
    EXPECT_EQ(once, events.size() == kEvents + 1);
    EXPECT_FALSE(parsed(events.back())["meta_info"]["finish_reason"].is_null());
  }
  EXPECT_EQ(server_->stats().slow_readers, 0u);
}

TEST_F(GenerateTest, AdminCommandsReachTheSchedulers) {
  EXPECT_EQ(post("/flush_cache", R"({"timeout":1.5})").get().status, 200);
  EXPECT_EQ(get("/flush_cache?timeout=2").status, 200);
  EXPECT_EQ(post("/start_profile", "{}").get().status, 200);
  engine_.replies = {{.stage = "scheduler", .message = "/tmp/x/trace.json"}, {.stage = "scheduler-1"}};
  EXPECT_EQ(post("/stop_profile", "").get().json()["replies"][0]["message"], "/tmp/x/trace.json");
  ASSERT_EQ(engine_.commands.size(), 4u);
  EXPECT_EQ(engine_.commands[0].action, wire::AdminAction::kFlushCache);
  EXPECT_EQ(engine_.commands[0].timeout_ms, 1500);
  EXPECT_EQ(engine_.commands[1].timeout_ms, 2000);
  EXPECT_EQ(engine_.commands[2].action, wire::AdminAction::kStartProfile);
  EXPECT_EQ(engine_.commands[3].action, wire::AdminAction::kStopProfile);
  engine_.replies = {{.stage = "scheduler"},
                     {.stage = "scheduler-1", .code = StatusCode::kConflict, .message = "busy"}};
  const Answer busy = post("/flush_cache", "").get();
  EXPECT_EQ(busy.status, 409);
  EXPECT_EQ(busy.json()["error"]["message"], "scheduler-1: busy");
  engine_.replies.clear();
  EXPECT_EQ(post("/flush_cache", "").get().status, 503);
  const std::size_t before = engine_.commands.size();
  for (const char* query : {"-1", "601", "nan", "x", ""}) {
    EXPECT_EQ(get(std::string("/flush_cache?timeout=") + query).status, 400) << query;
  }
  EXPECT_EQ(post("/start_profile", R"({"num_steps":3})").get().status, 400);
  EXPECT_EQ(post("/start_profile", R"({"output_dir":"/etc"})").get().status, 400);
  EXPECT_EQ(engine_.commands.size(), before);
}

TEST_F(GenerateTest, InfoPagesAndMetrics) {
  wire::StageStatus stage{.stage = "scheduler",
                          .state = wire::StageState::kReady,
                          .running = 3,
                          .waiting = 2,
                          .pages_total = 10,
                          .pages_free = 4,
                          .pages_cached = 5,
                          .page_size = 16,
                          .weight_version = 1};
  stage.metrics = {{"num_retractions_total", 7}, {"num_queue_reqs", 8}, {"bad name", 1}};
  engine_.state.stages = {stage, {.stage = "detokenizer", .state = wire::StageState::kReady}};
  const Json server = get("/server_info").json();
  EXPECT_EQ(server["max_total_num_tokens"], 160);
  EXPECT_EQ(server["max_req_input_len"], 63);
  EXPECT_EQ(server["version"], "test");
  EXPECT_EQ(server["status"], "ready");
  EXPECT_EQ(server["internal_states"][0]["free_tokens"], 64);
  EXPECT_EQ(get("/get_server_info").json(), server);
  engine_.state.stages[0].pages_total = 2;  // less than the context
  EXPECT_EQ(get("/server_info").json()["max_req_input_len"], 32);
  engine_.state.stages[0].pages_total = 10;
  const Json model = get("/get_model_info").json();
  EXPECT_EQ(model["weight_version"], "1");
  EXPECT_EQ(model["is_generation"], true);
  EXPECT_EQ(model["preferred_sampling_params"], Json());

  auto answer = post(kGenerate, R"({"text":"x","stream":true})");
  wait_submitted(1);
  play(0);
  answer.get();
  EXPECT_EQ(post(kGenerate, "{}").get().status, 400);
  const std::string page = get("/metrics").body;
  const char* lines[] = {
      "millrace:num_requests_total{model_name=\"demo\",finish_reason=\"stop\"} 1\n",
      "millrace:num_requests_total{model_name=\"demo\",finish_reason=\"abort\"} 0\n",
      "millrace:generation_tokens_total{model_name=\"demo\"} 3\n",
      "millrace:prompt_tokens_total{model_name=\"demo\"} 5\n",
      "millrace:cached_tokens_total{model_name=\"demo\"} 2\n",
      "millrace:time_to_first_token_seconds_count{model_name=\"demo\"} 1\n",
      "millrace:inter_token_latency_seconds_count{model_name=\"demo\"} 2\n",
      "millrace:e2e_request_latency_seconds_count{model_name=\"demo\"} 1\n",
      "millrace:queue_time_seconds_sum{model_name=\"demo\"} 0.25\n",
      "millrace:num_running_reqs{model_name=\"demo\",stage=\"scheduler\"} 3\n",
      "millrace:num_queue_reqs{model_name=\"demo\",stage=\"scheduler\"} 8\n",
      "millrace:num_used_tokens{model_name=\"demo\",stage=\"scheduler\"} 16\n",
      "millrace:num_retractions_total{model_name=\"demo\",stage=\"scheduler\"} 7\n",
      "millrace:requests_rejected_total{model_name=\"demo\",reason=\"invalid_argument\"} 1\n",
      "millrace:http_responses_total{model_name=\"demo\",status_code=\"4xx\"} 1\n",
      "millrace:ready{model_name=\"demo\"} 1\n",
  };
  for (const char* line : lines) EXPECT_NE(page.find(line), std::string::npos) << line << page;
  EXPECT_EQ(page.find("bad name"), std::string::npos);
}

TEST(Nearest, NamesThatAreMeant) {
  constexpr std::string_view kKnown[] = {"temperature", "top_p", "top_k", "stop", "sampling_seed", "n"};
  EXPECT_EQ(nearest_name("temprature", kKnown), "temperature");
  EXPECT_EQ(nearest_name("top-p", kKnown), "top_p");
  EXPECT_EQ(nearest_name("seed", kKnown), "sampling_seed");
  EXPECT_EQ(nearest_name("", kKnown), "n");
  EXPECT_FALSE(nearest_name(std::string(100'000, 'x'), kKnown).empty());
  EXPECT_EQ(suggestion("temprature", kKnown), "; perhaps 'temperature'");
  EXPECT_EQ(suggestion("zzzzzz", std::vector<std::string_view>{"prompts", "generate"}),
            "; there are 'prompts', 'generate'");
  EXPECT_EQ(suggestion(std::string(100'000, 'x'), std::vector<std::string_view>(9, "generate")), "");
  EXPECT_EQ(suggestion("x", {}), "");
}

}  // namespace
}  // namespace millrace::api::testing
