// PageTable: the KV pages of one sequence in order, of which a prefix is passed to the runner without a copy. A batch
// in flight goes on seeing the pages that it was submitted with, whatever becomes of the table.
//
// Owner: one sequence. Thread safety: the scheduler's thread only; what share() gave may be read in any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/shared_span.h"

namespace millrace {

class PageTable {
 public:
  int32_t size() const { return static_cast<int32_t>(numbers_.size()); }
  bool empty() const { return numbers_.empty(); }
  PageId operator[](std::size_t i) const { return PageId{numbers_[i]}; }

  // Pages [begin, end), or all from `begin` on. 0 <= begin <= end <= size().
  std::vector<PageId> pages(int32_t begin, int32_t end) const {
    CHECK(0 <= begin && begin <= end && end <= size());
    std::vector<PageId> out;
    for (int32_t i = begin; i < end; ++i) out.push_back((*this)[static_cast<std::size_t>(i)]);
    return out;
  }
  std::vector<PageId> pages(int32_t begin = 0) const { return pages(begin, size()); }

  void append(std::span<const PageId> pages) {
    for (const PageId page : pages) numbers_.push_back(page.value);
  }
  // Puts `pages` in the places from `begin` on. Where they are there already, nothing is written.
  void replace(int32_t begin, std::span<const PageId> pages) {
    CHECK(begin >= 0 && static_cast<std::size_t>(begin) + pages.size() <= numbers_.size());
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(begin) + i;
      if (numbers_[at] != pages[i].value) numbers_.set(at, pages[i].value);
    }
  }
  void clear() { numbers_.truncate(0); }

  // The numbers of the first `count` pages, for the runner. Copies nothing.
  SharedSpan<int32_t> share(int32_t count) { return numbers_.share(static_cast<std::size_t>(count)); }

 private:
  AppendArray<int32_t> numbers_;
};

}  // namespace millrace
