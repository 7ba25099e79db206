// JsonExtent: where a JSON object or array ends that comes byte by byte. It follows brackets and strings alone; whether
// the text in between is JSON, a parser checks when all of it has come.
//
// Owned by one parser; one thread at a time. Memory: one bit a level, at most kJsonMaxDepth.
#pragma once

#include <cstdint>

#include "base/json.h"

namespace millrace {

class JsonExtent {
 public:
  enum class State : uint8_t { kOpen, kComplete, kBroken };

  // The first byte is '{' or '['. After another state than kOpen nothing is pushed.
  State push(char byte);
  bool in_string() const { return in_string_; }
  int depth() const { return depth_; }

 private:
  State open(bool is_array);
  State close(bool is_array);

  static_assert(kJsonMaxDepth <= 64);
  uint64_t arrays_ = 0;  // a bit for each level: an array
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

}  // namespace millrace
