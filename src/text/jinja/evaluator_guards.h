// The evaluator's scope guards: nesting, output redirection, variable scopes. Included by its source files alone.
//
// Thread safety: one render, one thread.
#pragma once

#include <memory>
#include <utility>

#include "text/jinja/evaluator.h"

namespace millrace::jinja {

// One level of evaluation while it lives.
class Evaluator::Deeper {
 public:
  explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
    if (evaluator_.depth_ >= evaluator_.limits_.max_eval_depth) {
      fail_limit("the template runs more than {} levels deep", evaluator_.limits_.max_eval_depth);
    }
    ++evaluator_.depth_;
  }
  ~Deeper() { --evaluator_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Evaluator& evaluator_;
};

// Sends the output to `target` while it lives.
class Evaluator::Capture {
 public:
  Capture(Evaluator& evaluator, MarkedString& target)
      : evaluator_(evaluator), outer_(std::exchange(evaluator.out_, &target)) {}
  ~Capture() { evaluator_.out_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

 private:
  Evaluator& evaluator_;
  MarkedString* outer_;
};

// A new scope inside the current one, or inside `parent`.
class Evaluator::OpenScope {
 public:
  explicit OpenScope(Evaluator& evaluator) : OpenScope(evaluator, evaluator.scope_) {}
  OpenScope(Evaluator& evaluator, std::shared_ptr<Scope> parent)
      : evaluator_(evaluator), outer_(std::move(evaluator.scope_)) {
    evaluator_.scope_ = std::make_shared<Scope>();
    evaluator_.scope_->parent = std::move(parent);
  }
  ~OpenScope() { evaluator_.scope_ = std::move(outer_); }
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

}  // namespace millrace::jinja
