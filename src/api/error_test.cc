// Errors in OpenAI's shape. The statuses are those that base/status.h promises.
#include "api/error.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace millrace::api {
namespace {

Json parsed(const std::string& text) {
  auto json = parse_json(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? *json : Json();
}

TEST(ApiError, EveryStatusCodeHasItsHttpStatus) {
  const std::map<StatusCode, int> wanted = {
      {StatusCode::kInvalidArgument, 400},   {StatusCode::kNotFound, 404},        {StatusCode::kConflict, 409},
      {StatusCode::kResourceExhausted, 429}, {StatusCode::kUnavailable, 503},     {StatusCode::kDeadline, 504},
      {StatusCode::kCancelled, 499},         {StatusCode::kUnauthenticated, 401}, {StatusCode::kPermissionDenied, 403},
      {StatusCode::kUnsupported, 400},       {StatusCode::kInternal, 500},        {StatusCode::kTooLarge, 400},
  };
  for (const auto& [code, http] : wanted) {
    const ApiError error = from_status(Status(code, "m"));
    EXPECT_EQ(error.http_status, http) << status_code_name(code);
    EXPECT_EQ(error.message, "m");
    EXPECT_EQ(error.code, code == StatusCode::kTooLarge ? "limit_exceeded" : "");
  }
}

// The messages of stages/generating/lengths.cc and stages/prompt_encoder.cc.
TEST(ApiError, OnlyThePromptExceedsTheContext) {
  const auto of = [](const char* message) {
    return parsed(render_error(from_status(Status(StatusCode::kTooLarge, message))))["error"];
  };
  const Json tokens =
      of("prompt 1: This model's maximum context length is 1024 tokens. However, the prompt has 3001 tokens.");
  EXPECT_EQ(tokens["code"], "context_length_exceeded");
  EXPECT_EQ(tokens["type"], "exceed_context_size_error");
  EXPECT_EQ(tokens["n_prompt_tokens"], 3001);
  EXPECT_EQ(tokens["n_ctx"], 1024);
  const Json bytes = of("the prompt has 9 bytes; wanted at most 8, more than fits the model's context");
  EXPECT_EQ(bytes["code"], "context_length_exceeded");
  EXPECT_EQ(bytes["type"], "exceed_context_size_error");
  EXPECT_FALSE(bytes.contains("n_ctx"));
  const Json loop = of("chat_template.jinja, line 3: the template runs for more than 10000000 steps");
  EXPECT_EQ(loop["code"], "limit_exceeded");
  EXPECT_EQ(loop["type"], "invalid_request_error");
}

TEST(ApiError, TheBodyIsNestedAndComplete) {
  const Json body = parsed(render_error(bad_request("temperature is \"hot\"\n\xFF", "temperature")));
  ASSERT_EQ(body.size(), 1u);
  const Json& error = body["error"];
  EXPECT_EQ(error.size(), 4u);
  EXPECT_EQ(error["message"], "temperature is \"hot\"\n\xEF\xBF\xBD");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_TRUE(error["code"].is_null());
  const Json plain = parsed(render_error({.http_status = 500, .message = "m"}))["error"];
  EXPECT_TRUE(plain["param"].is_null());
  EXPECT_EQ(plain["type"], "server_error");
}

TEST(ApiError, TypesFollowTheStatus) {
  const std::map<int, std::string> wanted = {
      {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"},
      {404, "not_found_error"},       {409, "conflict_error"},       {413, "invalid_request_error"},
      {429, "rate_limit_error"},      {500, "server_error"},         {503, "overloaded_error"},
      {504, "timeout_error"},         {431, "invalid_request_error"}};
  for (const auto& [status, type] : wanted) {
    EXPECT_EQ(parsed(render_http_error(status, "m"))["error"]["type"], type) << status;
  }
  EXPECT_EQ(parsed(render_http_error(401, "m"))["error"]["code"], "invalid_api_key");
}

TEST(ApiError, RetryAfterOnlyWhereItHelps) {
  for (int status : {400, 404, 429, 500, 503, 504}) {
    const http::Response response = error_response({.http_status = status, .message = "m"});
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.headers.find("Retry-After") != nullptr, status == 429 || status == 503) << status;
    EXPECT_EQ(response.content_type, "application/json");
  }
}

}  // namespace
}  // namespace millrace::api
