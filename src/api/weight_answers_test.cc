// Which field of a request about weights an error names.
#include "api/weight_answers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace millrace::api {
namespace {

Json param(const Status& status, const char* field) {
  const http::Response response = failure(status, field);
  EXPECT_EQ(response.status, status.code() == StatusCode::kInternal ? 500 : 400);
  const auto body = parse_json(response.body);
  EXPECT_TRUE(body.ok() && (*body)["message"] == status.message() && !(*body)["success"].get<bool>()) << response.body;
  return body.ok() ? (*body)["error"]["param"] : Json();
}

TEST(WeightAnswersTest, TheNameOfAStageIsNoField) {
  const Status outside(StatusCode::kPermissionDenied, "scheduler: /x is not below --weights-root (not set)");
  EXPECT_EQ(param(outside, "model_path"), "model_path");
  EXPECT_EQ(param(Status(StatusCode::kNotFound, "scheduler/1: /x is not there"), "model_path"), "model_path");
  EXPECT_EQ(param(outside, ""), Json());
  for (const StatusCode code : {StatusCode::kConflict, StatusCode::kResourceExhausted, StatusCode::kInternal}) {
    EXPECT_EQ(param(Status(code, "scheduler: 3 GiB are free; wanted 4"), "model_path"), Json()) << "no field is wrong";
  }
}

TEST(WeightAnswersTest, AMessageOfTheRouteNamesItsField) {
  EXPECT_EQ(param(Status(StatusCode::kInvalidArgument, "load_format is 'x'; wanted 'auto'"), "model_path"),
            "load_format");
  EXPECT_EQ(param(Status(StatusCode::kConflict, "group_name is 'a'; wanted 'b'"), ""), "group_name");
  EXPECT_EQ(param(Status(StatusCode::kConflict, "a weight update is already in progress"), "model_path"), Json());
}

}  // namespace
}  // namespace millrace::api
