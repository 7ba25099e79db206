// TreePath: where in a tree lift() and restore() are, as "a.b[0].c"; and the map keys that both refuse alike.
//
// Keys stand in the path as they are, so a path is for comparing and for people; it is never taken apart.
// Owner: one lift() or restore(), on its thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace {

class TreePath {
 public:
  const std::string& text() const { return text_; }
  // Into a key of a map or an element of a list; returns what back() needs.
  std::size_t enter_key(std::string_view key);
  std::size_t enter_index(std::size_t index);
  void back(std::size_t mark) { text_.resize(mark); }
  // "at a.b[0]", cut short where it is long; "at the root".
  std::string where() const;

 private:
  std::string text_;
};

// A name for a message: UTF-8 and short, whatever it was.
std::string shown(std::string_view name);

// OK: a key is UTF-8 and at most wire::kMaxPathBytes long; each key of a map stands there once.
Status check_key(std::string_view key);
Status check_unique(const std::vector<std::string_view>& keys);

// The bytes of a dense tensor. The extents must be at least 0 and their product with the size of an element at most
// wire::kMaxPartBytes; zeros count as ones, so that Shape::elements() cannot overflow on its way to 0.
// kInvalidArgument, kTooLarge.
Result<std::size_t> checked_bytes(const int64_t* extents, std::size_t rank, std::size_t element_bytes);

}  // namespace millrace
