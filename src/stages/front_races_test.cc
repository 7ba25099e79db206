// One request, one end, when everything happens at the same time.
#include "stages/front.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <thread>

#include "stages/testing/front_harness.h"

namespace millrace::testing {
namespace {

// Everything at once, from a seed: clients that submit and abort, a backend that answers (and repeats itself), stages
// that die and come back, a deadline of nothing in every second round, and a drain at the end.
class FrontRaces : public FrontHarness, public ::testing::WithParamInterface<unsigned> {
 protected:
  static constexpr int kClients = 3, kEach = 120;

  struct Client {
    std::vector<std::pair<ReqId, std::shared_ptr<Heard>>> requests;
    std::set<ReqId> aborted;
  };

  void be_client(Client& client, unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kEach; ++i) {
      auto heard = std::make_shared<Heard>();
      const ReqId id = front_->submit(request(1 + static_cast<int32_t>(random() % 17)), sink_of(heard));
      client.requests.emplace_back(id, heard);
      if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      if (random() % 3 == 0) {
        const auto& [victim, its] = client.requests[random() % client.requests.size()];
        front_->abort(victim);
        std::lock_guard lock(its->mutex);
        its->aborted = true;
        client.aborted.insert(victim);
      }
    }
  }
  // Answers what the scheduler was given, some of it never, some of it twice.
  void be_backend(unsigned seed, std::set<ReqId>& finished) {
    std::mt19937 random(seed);
    std::size_t next = 0;
    while (!done_) {
      if (next == scheduler_->request_count()) {
        std::this_thread::yield();
        continue;
      }
      const ReqId id = scheduler_->request_id(next++);
      deliver({.id = id, .accepted = true});
      for (unsigned i = random() % 4; i > 0; --i) deliver({.id = id, .text = "x"});
      const unsigned fate = random() % 8;
      if (fate == 0) continue;
      wire::Finish end;
      if (fate == 1) end.matched_text = "x";
      if (fate != 1) finished.insert(id);
      deliver({.id = id, .finish = end});
      if (fate == 2) deliver({.id = id, .text = "again", .finish = end});
    }
  }
  void be_chaos(unsigned seed) {
    std::mt19937 random(seed);
    while (!done_) {
      const std::string stage = random() % 2 ? "scheduler" : "detokenizer";
      if (random() % 16 == 0) front_->stage_down(stage, "chaos");
      scheduler_->set_full(random() % 5 == 0);
      beat("scheduler", wire::StageState::kReady, kIncarnation);
      beat("detokenizer", wire::StageState::kReady, kIncarnation);
      std::this_thread::sleep_for(std::chrono::microseconds(500 + random() % 3000));
    }
    scheduler_->set_full(false);
  }

  std::atomic<bool> done_{false};
};

TEST_P(FrontRaces, OneRequestOneEnd) {
  const unsigned seed = GetParam();
  start({.max_requests = 40, .request_timeout_s = seed % 2 ? 0 : 600});
  // Before the chaos, so that something was under way for sure.
  if (seed % 2 == 0) running(std::make_shared<Heard>());
  std::vector<Client> clients(kClients);
  std::set<ReqId> finished;
  std::thread backend([&] { be_backend(seed + 100, finished); });
  std::thread chaos([&] { be_chaos(seed + 200); });
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back(
        [&, c] { be_client(clients[static_cast<std::size_t>(c)], seed * 10 + static_cast<unsigned>(c)); });
  }
  for (std::thread& thread : threads) thread.join();
  done_ = true;
  backend.join();
  chaos.join();
  front_->drain();
  front_->wait_idle(20);
  EXPECT_EQ(front_->live_requests(), 0u);
  tokenizer_->close();  // what the tokenizer still held has been said before the front is looked at
  threads_[0].join();
  threads_.erase(threads_.begin());

  for (const Client& client : clients) {
    for (const auto& [id, heard] : client.requests) {
      std::lock_guard lock(heard->mutex);
      EXPECT_LE(heard->ends.size(), 1u) << id.value;
      if (!client.aborted.contains(id)) {
        EXPECT_EQ(heard->ends.size(), 1u) << id.value;
      }
      EXPECT_LE(heard->accepted, 1) << id.value;
      EXPECT_EQ(heard->after_end + heard->at_once, 0) << id.value;
      EXPECT_LE(heard->after_abort, 1) << id.value;  // the one that was under way already
    }
  }
  EXPECT_EQ(scheduler_->after_abort(), 0);
  // Whatever the scheduler was given has ended there, or it is told to stop.
  const auto all_told = [&] {
    const auto aborts = scheduler_->aborts();
    const std::set<ReqId> told(aborts.begin(), aborts.end());
    for (const auto& sent : scheduler_->requests()) {
      if (!finished.contains(sent.id) && !told.contains(sent.id)) return false;
    }
    return true;
  };
  EXPECT_TRUE(eventually(all_told, 2000));
}

INSTANTIATE_TEST_SUITE_P(Seeds, FrontRaces, ::testing::Range(1u, 7u));

}  // namespace
}  // namespace millrace::testing
