// Random payloads for tests: every kind of value at every depth, with the hard ones often: NaNs of any bits, -0.0, the
// ends of int64, text of every length of character, bytes with NULs, empty containers, tensors of rank 0, without
// elements, that share a block, lie inside a larger one, or overlap another's.
//
// Thread safety: a maker belongs to one thread.
#pragma once

#include <random>
#include <vector>

#include "payload/value.h"

namespace millrace::testing {

class RandomValues {
 public:
  explicit RandomValues(uint64_t seed) : random_(seed) {}
  // A value of about max_nodes values at most.
  Value next(int max_nodes = 60);
  SharedTensor tensor();
  std::string text(std::size_t max_characters);

 private:
  uint64_t below(uint64_t end) { return random_() % end; }
  Value one(int depth);
  Value leaf();
  std::string bytes(std::size_t max_bytes);

  std::mt19937_64 random_;
  int nodes_left_ = 0;
  std::vector<SharedTensor> made_;  // of the value in work
};

}  // namespace millrace::testing
