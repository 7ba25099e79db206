// Requests with large bodies, whose handlers run beside those of small ones on another thread.
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "api/testing/api_harness.h"

namespace millrace::api::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kGateTimeout = 300s;  // longer than a client waits

// A member that no endpoint reads.
const std::string kPadding = R"("padding":")" + std::string(100'000, 'x') + R"(",)";

std::string large(const std::string& body) { return "{" + kPadding + body.substr(1); }

class LargeBodyTest : public ApiHarness {};

TEST_F(LargeBodyTest, AnAbortReachesChoicesThatAreStillToBeSubmitted) {
  std::promise<void> gate;
  std::atomic<bool> held{false};
  engine_.refuse = [&, opened = gate.get_future().share()](std::size_t index) {
    if (index == 1) held = true, opened.wait_for(kGateTimeout);
    return ok_status();
  };
  auto answer = post("/v1/completions", large(R"({"prompt":"x","n":4,"rid":"job"})"));
  ASSERT_TRUE(eventually([&] { return held.load(); }));
  auto abort = post("/abort_request", R"({"rid":"job"})");
  std::this_thread::sleep_for(50ms);  // it waits for the handler, and shows nothing of that
  gate.set_value();
  EXPECT_EQ(abort.get().json()["aborted"], 4);
  if (answer.wait_for(120s) == std::future_status::timeout) server_->stop();
  const Answer got = answer.get();
  ASSERT_EQ(got.status, 200);
  const Json choices = got.json()["choices"];
  ASSERT_EQ(choices.size(), 4u);
  for (const Json& choice : choices) EXPECT_EQ(choice["finish_reason"], "abort");
  EXPECT_EQ(context_->state->live.size(), 0u);
}

TEST_F(LargeBodyTest, StopAbortsWhatAHandlerHasSubmittedMeanwhile) {
  std::promise<void> gate;
  engine_.refuse = [opened = gate.get_future().share()](std::size_t) {
    opened.wait_for(kGateTimeout);
    std::this_thread::sleep_for(50ms);  // stop() is under way
    return ok_status();
  };
  auto answer = post("/v1/completions", large(R"({"prompt":"x","stream":true})"));
  wait_submitted(1);
  auto stopped = std::async(std::launch::async, [&] { server_->stop(); });
  gate.set_value();
  stopped.get();
  EXPECT_EQ(answer.get().status, 0);
  EXPECT_EQ(engine_.aborts(), std::vector<std::size_t>{0});
}

TEST_F(LargeBodyTest, EveryEndpointServesBothSizesAtOnce) {
  const std::tuple<const char*, const char*, int> kinds[] = {
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"n":2})", 429},
      {"/v1/chat/completions", R"({"messages":[]})", 400},
      {"/v1/completions", R"({"prompt":"x","stream":true,"seed":1})", 429},
      {"/v1/completions", R"({"prompt":[1,2],"echo":true})", 429},
      {"/generate", R"({"text":["x","y"],"sampling_params":{"n":2}})", 429},
      {"/tokenize", R"({"prompt":"x"})", 200},
      {"/detokenize", R"({"tokens":[1]})", 200},
      {"/abort_request", R"({"abort_all":true})", 200},
      {"/flush_cache", R"({"timeout":1})", 200},
      {"/start_profile", R"({"num_steps":null})", 200},
  };
  engine_.refuse = [](std::size_t) { return Status(StatusCode::kResourceExhausted, "full"); };
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  clients.reserve(4);
  for (bool is_large : {true, true, false, false}) {
    clients.emplace_back([&, is_large] {
      for (int round = 0; round < 5; ++round) {
        for (const auto& [path, body, status] : kinds) {
          const Answer got = post(path, is_large ? large(body) : body).get();
          if (got.status != status) ++wrong, ADD_FAILURE() << path << " " << got.status << " " << got.body;
        }
        if (get("/metrics").status != 200 || get("/server_info").status != 200) ++wrong;
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(context_->state->live.size(), 0u);
}

}  // namespace
}  // namespace millrace::api::testing
