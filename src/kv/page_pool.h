// PagePool: the books of a fixed number of KV pages. A page is a number; the bytes behind it belong to the runner.
//
// Every page is in exactly one state, and the pool counts each state, so that at any time
//   free + held + cached + importing = all.
// Taking and releasing a page is O(1). A wrong move (double free, a number out of range, a page that is not in the
// state the caller believes) changes nothing and is reported as kInternal: the caller logs it and lives on.
//
// Sharing is not counted here: a page has one owner, a request (held) or the radix cache (cached), and requests share
// cached pages through the lock counts of the tree's nodes.
//
// Owner: one scheduler. Thread safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace millrace {

enum class PageState : uint8_t {
  kFree = 0,
  kHeld = 1,       // one request owns it, and may write to it
  kCached = 2,     // the radix cache owns it; no code writes to it
  kImporting = 3,  // a transfer from another scheduler writes to it (scheduler/page_transfers.h)
};
inline constexpr int kPageStates = 4;
const char* page_state_name(PageState state);

// How many pages are in each state.
struct PageBooks {
  int32_t all = 0;
  std::array<int32_t, kPageStates> in_state{};

  int32_t free() const { return in_state[0]; }
  int32_t held() const { return in_state[1]; }
  int32_t cached() const { return in_state[2]; }
  int32_t importing() const { return in_state[3]; }
  bool balance() const;
  std::string to_string() const;  // "free 3 + held 4 + cached 1 + ... = 8 of 8"
};

class PagePool {
 public:
  explicit PagePool(int32_t page_count);

  int32_t page_count() const { return static_cast<int32_t>(states_.size()); }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }

  // Appends `count` pages, now kHeld, to `out`. All or nothing: false when fewer are free.
  bool allocate(int32_t count, std::vector<PageId>& out);

  // kHeld or kCached -> kFree. `from` is the state the caller believes.
  Status release(PageId page, PageState from);

  // Between any two states but kFree.
  Status move(PageId page, PageState from, PageState to);

  bool contains(PageId page) const { return page.value >= 0 && page.value < page_count(); }
  PageState state(PageId page) const;  // a page out of range is a programmer error

  PageBooks books() const;
  // Recounts every page and the free list; O(pages). kInternal names what does not match.
  Status verify() const;

 private:
  Status expect(PageId page, PageState from) const;
  void set(PageId page, PageState to);

  std::vector<PageState> states_;
  std::vector<PageId> free_;  // a stack: the page freed last is the warmest
  PageBooks books_;
};

}  // namespace millrace
