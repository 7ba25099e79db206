#include "kv/page_pool.h"

namespace millrace {

namespace {

std::size_t index_of(PageState state) { return static_cast<std::size_t>(state); }
std::size_t index_of(PageId page) { return static_cast<std::size_t>(page.value); }

}  // namespace

const char* page_state_name(PageState state) {
  static constexpr std::array<const char*, kPageStates> kNames = {"free", "held", "cached", "importing"};
  return kNames[index_of(state)];
}

bool PageBooks::balance() const {
  int64_t sum = 0;
  for (int32_t count : in_state) {
    if (count < 0) return false;
    sum += count;
  }
  return sum == all;
}

std::string PageBooks::to_string() const {
  std::string text;
  int64_t sum = 0;
  for (int i = 0; i < kPageStates; ++i) {
    const int32_t count = in_state[static_cast<std::size_t>(i)];
    text += fmt::format("{}{} {}", i == 0 ? "" : " + ", page_state_name(static_cast<PageState>(i)), count);
    sum += count;
  }
  return text + fmt::format(" = {} of {}", sum, all);
}

PagePool::PagePool(int32_t page_count) {
  CHECK(page_count > 0);
  states_.assign(static_cast<std::size_t>(page_count), PageState::kFree);
  // Every page fits, so that releasing one never allocates.
  free_.reserve(states_.size());
  // The lowest number lies on top, so that a fresh pool hands out 0, 1, 2...
  for (int32_t page = page_count - 1; page >= 0; --page) free_.push_back(PageId{page});
  books_.all = page_count;
  books_.in_state[index_of(PageState::kFree)] = page_count;
}

bool PagePool::allocate(int32_t count, std::vector<PageId>& out) {
  CHECK(count >= 0);
  // All or nothing: a request with a part of its pages could only hold them and wait.
  if (count > free_count()) return false;
  for (int32_t i = 0; i < count; ++i) {
    const PageId page = free_.back();
    free_.pop_back();
    set(page, PageState::kHeld);
    out.push_back(page);
  }
  return true;
}

// An error and no CHECK: a page that is released twice is a fault of one request, and is worth a line in the log rather
// than all other requests. Since nothing changes, the page still has one owner.
Status PagePool::release(PageId page, PageState from) {
  CHECK(from != PageState::kFree);
  RETURN_IF_ERROR(expect(page, from));
  set(page, PageState::kFree);
  free_.push_back(page);
  return ok_status();
}

Status PagePool::move(PageId page, PageState from, PageState to) {
  // To and from kFree goes through allocate() and release(), which keep the free list.
  CHECK(from != PageState::kFree && to != PageState::kFree);
  RETURN_IF_ERROR(expect(page, from));
  set(page, to);
  return ok_status();
}

PageState PagePool::state(PageId page) const {
  CHECK(contains(page));
  return states_[index_of(page)];
}

PageBooks PagePool::books() const { return books_; }

// Recounts from the states, which are the truth; books and free list are derived from them.
Status PagePool::verify() const {
  PageBooks counted;
  counted.all = page_count();
  for (PageState state : states_) ++counted.in_state[index_of(state)];
  if (!books_.balance() || counted.in_state != books_.in_state) {
    return internal_error("page books have {}; counted {}", books_.to_string(), counted.to_string());
  }
  if (free_count() != counted.free()) {
    return internal_error("the free list has {} pages; {} are free", free_count(), counted.free());
  }
  std::vector<bool> listed(states_.size(), false);
  for (PageId page : free_) {
    if (!contains(page) || state(page) != PageState::kFree || listed[index_of(page)]) {
      return internal_error("page {} stands on the free list and is not free, or stands there twice", page.value);
    }
    listed[index_of(page)] = true;
  }
  return ok_status();
}

Status PagePool::expect(PageId page, PageState from) const {
  if (!contains(page)) return internal_error("page {} does not exist; wanted 0..{}", page.value, page_count() - 1);
  if (state(page) == from) return ok_status();
  return internal_error("page {} is {}; wanted {}", page.value, page_state_name(state(page)), page_state_name(from));
}

// The only function that writes a state, so that the books always agree with it.
void PagePool::set(PageId page, PageState to) {
  PageState& state = states_[index_of(page)];
  --books_.in_state[index_of(state)];
  ++books_.in_state[index_of(to)];
  state = to;
}

}  // namespace millrace
