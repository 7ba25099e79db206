// DetachBudget: what is copied for a wait, and what is not.
#include "stages/loop/detach.h"

#include <gtest/gtest.h>

namespace millrace::loop {
namespace {

SharedTensor tensor(int64_t bytes, char fill) {
  Buffer buffer(static_cast<std::size_t>(bytes));
  std::fill_n(buffer.as<char>().begin(), bytes, fill);
  return {.dtype = DType::kU8, .shape = {bytes}, .bytes = SharedBytes(std::move(buffer))};
}

TEST(DetachBudget, CopiesWhatFitsAndReleasesTheReservation) {
  DetachBudget budget(100);
  const SharedTensor small = tensor(60, 'a'), large = tensor(101, 'b');
  Value first = ValueMap{{"list", ValueList{Value(small), Value(3)}}}, second(small), third(large), none("text");
  const auto at = [](const Value& value) {
    return (*value.find("list")->get<ValueList>())[0].get<SharedTensor>()->bytes.data();
  };
  auto reservation = budget.detach(first);
  ASSERT_TRUE(reservation);
  EXPECT_EQ(budget.held_bytes(), 60u);
  EXPECT_NE(at(first), small.bytes.data());
  EXPECT_EQ(std::memcmp(at(first), small.bytes.data(), 60), 0);
  // No capacity now, never enough capacity, nothing to copy: as they were.
  EXPECT_FALSE(budget.detach(second));
  EXPECT_FALSE(budget.detach(third));
  EXPECT_FALSE(budget.detach(none));
  EXPECT_EQ(second.get<SharedTensor>()->bytes.data(), small.bytes.data());
  EXPECT_EQ(third.get<SharedTensor>()->bytes.data(), large.bytes.data());
  reservation.reset();
  EXPECT_EQ(budget.held_bytes(), 0u);
  reservation = budget.detach(second);
  EXPECT_TRUE(reservation);
  EXPECT_NE(second.get<SharedTensor>()->bytes.data(), small.bytes.data());
}

TEST(DetachBudget, AReservationMayOutliveTheBudget) {
  std::shared_ptr<void> reservation;
  {
    DetachBudget budget(100);
    Value value(tensor(100, 'a'));
    reservation = budget.detach(value);
    ASSERT_TRUE(reservation);
  }
  reservation.reset();
}

}  // namespace
}  // namespace millrace::loop
