// WorkerLoad: a worker that cannot be made is a failure of its own, whatever it throws.
#include <gtest/gtest.h>

#include <stdexcept>

#include "stages/loop/worker_host.h"

namespace millrace::loop {
namespace {

TEST(WorkerLoad, WhatIsThrownWhileItLoadsIsItsFailure) {
  WorkerLoad exception, other;
  EXPECT_FALSE(exception.run([]() -> Result<std::unique_ptr<Worker>> { throw std::runtime_error("no file"); }).ok());
  EXPECT_EQ(exception.failure().message(), "loading the worker threw: no file");
  EXPECT_FALSE(other.run([]() -> Result<std::unique_ptr<Worker>> { throw 5; }).ok());
  EXPECT_EQ(other.failure().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace millrace::loop
