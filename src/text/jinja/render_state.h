// RenderState: what the statements and expressions of one render share: budget, clock, line, scopes, output, and the
// namespaces that the template made.
//
// Owner: Template::render. Thread safety: one render, one thread.
// Invariants: depth <= limits.max_eval_depth. Every namespace of the render is in `namespaces`, which empties them at
// the end, for they can refer to each other in circles.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/budget.h"
#include "text/jinja/scope.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

// Where printed text goes: the innermost capture.
class Output {
 public:
  // Sends the output to `target` while it lives.
  class Capture {
   public:
    Capture(Output& output, MarkedString& target) : output_(output), outer_(std::exchange(output.target_, &target)) {}
    ~Capture() { output_.target_ = outer_; }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

   private:
    Output& output_;
    MarkedString* outer_;
  };

  // Requires a capture.
  void append(const MarkedString& text, Budget& budget) {
    CHECK(target_ != nullptr);
    if (target_->size() + text.size() > budget.limits().max_output_bytes) {
      fail_limit("the output has more than {} bytes", budget.limits().max_output_bytes);
    }
    budget.string(text.size());
    target_->append(text);
  }

 private:
  MarkedString* target_ = nullptr;
};

struct RenderState {
  RenderState(const Limits& limits, int64_t now_unix_s)
      : limits(limits), budget(this->limits), now_unix_s(now_unix_s) {}
  ~RenderState() {
    // The vector keeps every namespace alive while they are emptied one by one: no destructor recurses.
    for (auto& space : namespaces) space->members.clear();
  }
  RenderState(const RenderState&) = delete;
  RenderState& operator=(const RenderState&) = delete;

  const Limits limits;
  Budget budget;
  const int64_t now_unix_s;
  int line = 0;   // of the statement or expression that runs; after an error: of the one that failed
  int depth = 0;  // of nested evaluation
  Output output;
  std::vector<std::shared_ptr<NamespaceObject>> namespaces;
  ScopeChain scopes;
};

// One level of evaluation while it lives.
class Nesting {
 public:
  explicit Nesting(RenderState& state) : state_(state) {
    if (state_.depth >= state_.limits.max_eval_depth) {
      fail_limit("the template runs more than {} levels deep", state_.limits.max_eval_depth);
    }
    ++state_.depth;
  }
  ~Nesting() { --state_.depth; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  RenderState& state_;
};

}  // namespace millrace::jinja
