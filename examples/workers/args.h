// Args that all example workers take: delays, and failures at a given text. Thread safety: values.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/status.h"
#include "examples/workers/formulas.h"

namespace millrace::examples {

struct CommonArgs {
  int64_t sleep_ms = 0;
  int64_t pace_ms = 0;
  std::string fail_on;
  std::string throw_on;

  static Result<CommonArgs> parse(const Value& args) {
    CommonArgs out;
    ASSIGN_OR_RETURN(out.sleep_ms, int_of(args, "sleep_ms", 0, 0, 600'000));
    ASSIGN_OR_RETURN(out.pace_ms, int_of(args, "pace_ms", 0, 0, 600'000));
    if (has(args, "fail_on") && args.find("fail_on")->get<std::string>()) {
      out.fail_on = *args.find("fail_on")->get<std::string>();
    }
    if (has(args, "throw_on") && args.find("throw_on")->get<std::string>()) {
      out.throw_on = *args.find("throw_on")->get<std::string>();
    }
    return out;
  }

  // Before the work on a payload: the delay and the failures.
  Status prepare(const Value& payload) const {
    rest();
    const std::string text = text_of(payload);
    if (!throw_on.empty() && text == throw_on) throw std::runtime_error("told to throw on '" + text + "'");
    if (!fail_on.empty() && text == fail_on) return invalid_argument("told to fail on '{}'", text);
    return ok_status();
  }
  void rest() const {
    if (sleep_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
  }
};

}  // namespace millrace::examples
