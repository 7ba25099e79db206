// Status and Result: what callers lean on when they pass errors up.
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace millrace {
namespace {

Status fail_when(bool fail) { return fail ? invalid_argument("x is {}; wanted {}", 3, 4) : ok_status(); }

Status pass_up(bool fail, int& reached) {
  RETURN_IF_ERROR(fail_when(fail));
  ++reached;
  return ok_status();
}

// Names of its own must not hide those of the macro's caller.
class Keeper {
 public:
  Status kept() const {
    RETURN_IF_ERROR(status_);
    return ok_status();
  }

 private:
  Status status_ = fail_when(true);
};

Result<std::unique_ptr<int>> make(bool fail) {
  if (fail) return Status(StatusCode::kNotFound, "no such number");
  return std::make_unique<int>(7);
}

Result<int> twice(bool fail) {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> value, make(fail));
  ASSIGN_OR_RETURN(const std::unique_ptr<int> other, make(fail));  // two in one scope
  return *value + *other;
}

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_TRUE(status.with_prefix("never").ok());
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(Status(StatusCode::kOk, "an answer is no status").message(), "");
}

TEST(Status, IsCopiedMovedAndAssigned) {
  Status status = fail_when(true), copy = status;
  EXPECT_EQ(copy.to_string(), status.to_string());
  const Status moved = std::move(status);
  EXPECT_EQ(moved.to_string(), copy.to_string());
  copy = *&copy;  // to itself
  EXPECT_EQ(copy.message(), "x is 3; wanted 4");
  copy = ok_status();
  EXPECT_TRUE(copy.ok());
  copy = moved;
  EXPECT_EQ(copy.code(), StatusCode::kInvalidArgument);
}

TEST(Status, ErrorsHaveCodeAndMessage) {
  const Status status = fail_when(true);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "invalid_argument: x is 3; wanted 4");
  const Status prefixed = status.with_prefix("config.json");
  EXPECT_EQ(prefixed.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(prefixed.message(), "config.json: x is 3; wanted 4");
  EXPECT_EQ(internal_error("{}", "x").code(), StatusCode::kInternal);
  EXPECT_EQ(error(StatusCode::kDeadline, "{} s", 5).to_string(), "deadline: 5 s");
}

TEST(Status, EveryCodeHasAName) {
  std::set<std::string_view> names;
  for (int code = 0; code <= 12; ++code) names.insert(status_code_name(static_cast<StatusCode>(code)));
  EXPECT_EQ(names.size(), 13u);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(200)), "unknown");
}

TEST(Status, MacrosPassErrorsUpAndGoOnOtherwise) {
  EXPECT_EQ(Keeper().kept().code(), StatusCode::kInvalidArgument);
  int reached = 0;
  EXPECT_EQ(pass_up(true, reached).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(reached, 0);
  EXPECT_TRUE(pass_up(false, reached).ok());
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(twice(true).status().message(), "no such number");
  EXPECT_EQ(*twice(false), 14);
}

TEST(Result, HoldsWhatCannotBeCopied) {
  auto made = make(false);
  ASSERT_TRUE(made.ok());
  EXPECT_TRUE(made.status().ok());
  EXPECT_EQ(**made, 7);
  const std::unique_ptr<int> moved = std::move(made).value();
  EXPECT_EQ(*moved, 7);
}

TEST(ResultDeathTest, TakingTheValueOfAnErrorPrintsTheError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ auto value = make(true).value(); }, "not_found: no such number");
  EXPECT_DEATH({ Result<int> broken{ok_status()}; }, "OK status");
  EXPECT_DEATH(CHECK(1 + 1 == 3), "1 \\+ 1 == 3");
}

}  // namespace
}  // namespace millrace
