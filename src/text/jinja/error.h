// The exception that unwinds the parser and the evaluator. It never leaves this folder: Template::parse and
// Template::render catch it and return a Status (jinja/template.cc).
//
// Exceptions rather than Result inside: an expression evaluator fails in some two hundred places, nearly all of them in
// leaf functions below five levels of recursion.
//
// Thread safety: a value.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

#include "base/status.h"

namespace millrace::jinja {

struct TemplateError {
  StatusCode code;
  std::string message;
  int line;  // of the template, from 1; 0: wherever the evaluator stands
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), 0};
}

template <typename... Args>
[[noreturn]] void fail_at(int line, fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), line};
}

template <typename... Args>
[[noreturn]] void fail_limit(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{StatusCode::kTooLarge, fmt::format(format, std::forward<Args>(args)...), 0};
}

}  // namespace millrace::jinja
