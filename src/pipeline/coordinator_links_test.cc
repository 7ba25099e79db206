#include "pipeline/coordinator_links.h"

#include <gtest/gtest.h>

#include <map>

namespace millrace {
namespace {

// Coordinators by address: an inbox and a bus of hints each.
struct Coordinators {
  struct One {
    LocalMailbox mailbox = make_local_mailbox();
    LocalAbortBus aborts;
  };
  std::map<std::string, One> all;

  CoordinatorLinks::Opener opener() {
    return {.outbox = [this](const std::string& control) -> Result<std::shared_ptr<Outbox>> {
              if (!all.contains(control)) return error(StatusCode::kUnavailable, "no {}", control);
              return all[control].mailbox.outbox;
            },
            .aborts = [this](const std::string& control,
                             std::shared_ptr<Waker> waker) -> Result<std::unique_ptr<AbortSubscription>> {
              if (!all.contains(control)) return error(StatusCode::kUnavailable, "no {}", control);
              return all[control].aborts.subscribe(std::move(waker));
            }};
  }
  uint64_t received(const std::string& control) {
    const auto message = all[control].mailbox.inbox->receive(0);
    return message ? std::get<wire::AbortRequest>(*message).id.value : 0;
  }
};

void send(Outbox& outbox, uint64_t id) {
  wire::Message message = wire::AbortRequest{ReqId{id}};
  EXPECT_TRUE(outbox.send(message).ok());
}

TEST(CoordinatorLinks, WhatIsOpenIsLedToTheNewCoordinator) {
  Coordinators coordinators;
  coordinators.all["a"];
  coordinators.all["b"];
  CoordinatorLinks links("a", coordinators.opener());
  const auto outbox = links.connect();
  const auto hints = links.subscribe(nullptr);
  ASSERT_TRUE(outbox.ok() && hints.ok());
  send(**outbox, 1);
  coordinators.all["a"].aborts.publish(ReqId{2});
  EXPECT_EQ(coordinators.received("a"), 1u);
  EXPECT_EQ((*hints)->next(), ReqId{2});

  EXPECT_TRUE(links.move("b").ok());
  send(**outbox, 3);
  coordinators.all["a"].aborts.publish(ReqId{4});
  coordinators.all["b"].aborts.publish(ReqId{5});
  EXPECT_EQ(coordinators.received("a"), 0u);
  EXPECT_EQ(coordinators.received("b"), 3u);
  EXPECT_EQ((*hints)->next(), ReqId{5});
  EXPECT_EQ((*hints)->next(), std::nullopt);

  const auto later = links.connect();  // what is opened from then on is there too
  send(**later, 6);
  EXPECT_EQ(coordinators.received("b"), 6u);
}

TEST(CoordinatorLinks, WhereTheNewOneIsNotReachedTheOldWayStays) {
  Coordinators coordinators;
  coordinators.all["a"];
  CoordinatorLinks links("a", coordinators.opener());
  const auto outbox = links.connect();
  ASSERT_TRUE(outbox.ok());
  EXPECT_EQ(links.move("b").code(), StatusCode::kUnavailable);
  send(**outbox, 1);
  EXPECT_EQ(coordinators.received("a"), 1u);
}

TEST(CoordinatorLinks, WhoHoldsOneMayOutliveThem) {
  Coordinators coordinators;
  coordinators.all["a"];
  auto links = std::make_unique<CoordinatorLinks>("a", coordinators.opener());
  const auto outbox = links->connect();
  auto hints = links->subscribe(nullptr);
  hints->reset();
  links.reset();
  send(**outbox, 1);
  EXPECT_EQ(coordinators.received("a"), 1u);
}

}  // namespace
}  // namespace millrace
