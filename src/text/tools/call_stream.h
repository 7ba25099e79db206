// CallStream: follows the JSON of a call, or of an array of them, while it comes, and finds the name and where the
// arguments begin and end. It relies on a form that a grammar guarantees: the name stands before the arguments.
//
// Owned by one parser; one thread at a time. Memory: one string of the JSON's members.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "text/tools/json_extent.h"

namespace millrace {

class CallStream {
 public:
  enum class Found : uint8_t {
    kNothing,
    kArgumentsBegin,  // with this byte; name() is the function
    kArguments,       // a byte of them
    kArgumentsEnd,    // with this byte
  };

  // `name`: of a call whose JSON is the arguments alone; empty: the name is a member.
  explicit CallStream(std::string name = {}) : name_(std::move(name)), named_(!name_.empty()) {}

  // The next byte; `before` and `after`: the extent before and after it.
  Found push(char byte, const JsonExtent& before, const JsonExtent& after);
  const std::string& name() const { return name_; }

 private:
  Found outside(char byte, const JsonExtent& before, const JsonExtent& after);
  void string_ends();

  std::string name_, key_, string_;
  bool named_ = false;
  bool in_value_ = false;  // behind the ':' of a member
  int level_ = 1;          // the depth of the call's members
  bool in_arguments_ = false;
};

}  // namespace millrace
