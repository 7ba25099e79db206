// The `loop` variable of a for statement.
//
// Thread safety: one render, one thread.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/scope.h"
#include "text/jinja/value.h"

namespace millrace::jinja {

struct LoopObject : Object {
  const Stmt* stmt = nullptr;
  std::shared_ptr<Scope> outer;  // the scope around the loop, for its filter and for recursion
  std::vector<Value> items;      // what is iterated, before the loop's own filter
  size_t position = 0;           // of the next item to look at
  bool filtered = false;         // `items` have all passed the filter already
  std::optional<Value> after;    // an item taken ahead, for `last` and `nextitem`
  std::optional<Value> current;
  std::optional<Value> before;
  std::optional<std::vector<Value>> changed;  // arguments of the last loop.changed()
  int64_t index0 = -1;
  int64_t size = -1;  // after the filter; -1: not known yet
  int depth0 = 0;
};

// The next item that passes the loop's filter; nullopt at the end.
std::optional<Value> next_loop_item(Evaluator& evaluator, LoopObject& loop);
// `loop.name`; nullopt where there is no such attribute.
std::optional<Value> loop_attribute(Evaluator& evaluator, const Value& loop, std::string_view name);

}  // namespace millrace::jinja
