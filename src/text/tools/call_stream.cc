#include "text/tools/call_stream.h"

#include "wire/output_parsing.h"

namespace millrace {

CallStream::Found CallStream::push(char byte, const JsonExtent& before, const JsonExtent& after) {
  if (in_arguments_) {
    if (after.depth() >= level_ + 1 || after.in_string()) return Found::kArguments;
    in_arguments_ = false;
    return Found::kArgumentsEnd;
  }
  if (named_ && before.depth() == 0) {
    level_ = 0;
    in_arguments_ = true;
    return Found::kArgumentsBegin;
  }
  return outside(byte, before, after);
}

CallStream::Found CallStream::outside(char byte, const JsonExtent& before, const JsonExtent& after) {
  if (before.in_string()) {
    if (!after.in_string()) {
      if (after.depth() == level_) string_ends();
    } else if (string_.size() <= wire::kMaxToolNameBytes) {
      string_ += byte;  // a longer one is no name, and no key that is looked for
    }
    return Found::kNothing;
  }
  switch (byte) {
    case '"':
      string_.clear();
      break;
    case '[':
      if (before.depth() == 0) level_ = 2;
      break;
    case ':':
      in_value_ = in_value_ || before.depth() == level_;
      break;
    case ',':
      if (before.depth() == level_) in_value_ = false;
      break;
    case '{':
      if (after.depth() == level_) {  // another call
        name_.clear();
        in_value_ = false;
      } else if (after.depth() == level_ + 1 && in_value_ && !name_.empty() &&
                 (key_ == "arguments" || key_ == "parameters")) {
        in_arguments_ = true;
        return Found::kArgumentsBegin;
      }
      break;
    default:
      break;
  }
  return Found::kNothing;
}

void CallStream::string_ends() {
  if (!in_value_) {
    key_ = string_;
  } else if (key_ == "name") {
    name_ = string_;
  }
}

}  // namespace millrace
