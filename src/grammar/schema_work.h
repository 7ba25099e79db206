// SchemaWork: what compiling one schema has cost, in steps of 20 to 100 ns: transitions of automata, values of joined
// schemas, rules. Each automaton and each join has a limit of its own, but a small schema may ask for thousands of
// them, and while it compiles all other grammars wait. Steps are counted instead of time, so that a schema is either
// served on every machine or on none.
//
// Owner: parse_json_schema(), or the reader of structural tags, for all of their schemas. Thread safety: none.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace millrace::grammar {

inline constexpr std::size_t kMaxSchemaWork = 20'000'000;  // up to a second

class SchemaWork {
 public:
  // kTooLarge: over kMaxSchemaWork.
  Status spend(std::size_t steps) {
    steps_ += steps;
    if (steps_ <= kMaxSchemaWork) return ok_status();
    return error(StatusCode::kTooLarge,
                 "the schema takes more than {} steps to compile; wanted fewer or simpler patterns, alternatives and "
                 "joined schemas",
                 kMaxSchemaWork);
  }
  std::size_t steps() const { return steps_; }

 private:
  std::size_t steps_ = 0;
};

}  // namespace millrace::grammar
