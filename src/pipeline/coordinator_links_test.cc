#include "pipeline/coordinator_links.h"

#include <gtest/gtest.h>

#include <map>

namespace millrace {
namespace {

// The inboxes of coordinators by address.
struct Coordinators {
  std::map<std::string, LocalMailbox> all;

  void add(const std::string& control) { all.emplace(control, make_local_mailbox()); }
  CoordinatorLinks::Open open() {
    return [this](const std::string& control) -> Result<std::shared_ptr<Outbox>> {
      if (!all.contains(control)) return error(StatusCode::kUnavailable, "no {}", control);
      return all.at(control).outbox;
    };
  }
  uint64_t received(const std::string& control) {
    const auto message = all.at(control).inbox->receive(0);
    return message ? std::get<wire::AbortRequest>(*message).id.value : 0;
  }
};

void send(Outbox& outbox, uint64_t id) {
  wire::Message message = wire::AbortRequest{ReqId{id}};
  EXPECT_TRUE(outbox.send(message).ok());
}

TEST(CoordinatorLinks, WhatIsOpenIsLedToTheNewCoordinator) {
  Coordinators coordinators;
  coordinators.add("a");
  coordinators.add("b");
  CoordinatorLinks links("a", coordinators.open());
  const auto outbox = links.connect();
  ASSERT_TRUE(outbox.ok());
  send(**outbox, 1);
  EXPECT_EQ(coordinators.received("a"), 1u);

  EXPECT_TRUE(links.move("b").ok());
  send(**outbox, 3);
  EXPECT_EQ(coordinators.received("a"), 0u);
  EXPECT_EQ(coordinators.received("b"), 3u);

  const auto later = links.connect();  // what is opened from then on is there too
  send(**later, 6);
  EXPECT_EQ(coordinators.received("b"), 6u);
}

TEST(CoordinatorLinks, WhereTheNewOneIsNotReachedTheOldWayStays) {
  Coordinators coordinators;
  coordinators.add("a");
  CoordinatorLinks links("a", coordinators.open());
  const auto outbox = links.connect();
  ASSERT_TRUE(outbox.ok());
  EXPECT_EQ(links.move("b").code(), StatusCode::kUnavailable);
  send(**outbox, 1);
  EXPECT_EQ(coordinators.received("a"), 1u);
}

TEST(CoordinatorLinks, WhoHoldsOneMayOutliveThem) {
  Coordinators coordinators;
  coordinators.add("a");
  auto links = std::make_unique<CoordinatorLinks>("a", coordinators.open());
  const auto outbox = links->connect();
  links.reset();
  send(**outbox, 1);
  EXPECT_EQ(coordinators.received("a"), 1u);
}

}  // namespace
}  // namespace millrace
