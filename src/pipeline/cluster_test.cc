// A thousand simulated clusters (testing/cluster.h), and whether the checks would find a bug.
//
//   pipeline_cluster_test --seed 17         one of them, with a trace of what happens
//   pipeline_cluster_test --seeds 1 20000   many
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "pipeline/testing/cluster.h"

namespace millrace::testing {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr uint64_t kSeeds = 100;  // a world is one thread, and takes twenty times as long
#else
constexpr uint64_t kSeeds = 1000;
#endif
uint64_t first_seed = 1, last_seed = kSeeds;

void print(const ClusterReport& r, uint64_t seed) {
  fmt::print(
      "seed {}: {} completed, {} failed, {} aborted, {} refused; {} kills, {} pauses, {} cuts, {} delays, "
      "{} successions; {} ms\n",
      seed, r.completed, r.failed, r.aborted, r.refused, r.kills, r.pauses, r.cuts, r.delays, r.successions,
      r.virtual_ms);
}

TEST(Cluster, EveryWorldEndsWell) {
  ClusterReport all;
  int bad = 0;
  for (uint64_t seed = first_seed; seed <= last_seed && bad < 5; ++seed) {
    const ClusterReport one = run_cluster({.seed = seed});
    for (const std::string& fault : one.faults) ADD_FAILURE() << "seed " << seed << ": " << fault;
    bad += one.faults.empty() ? 0 : 1;
    all.completed += one.completed, all.failed += one.failed, all.aborted += one.aborted, all.refused += one.refused;
    all.kills += one.kills, all.pauses += one.pauses, all.cuts += one.cuts, all.delays += one.delays;
    all.successions += one.successions;
    all.fenced += one.fenced, all.repeated += one.repeated, all.late += one.late;
    all.virtual_ms += one.virtual_ms;
  }
  print(all, last_seed);
  fmt::print("{} fenced, {} repeated, {} late messages\n", all.fenced, all.repeated, all.late);
  if (last_seed - first_seed < 500) return;
  // The worlds are worth looking at: all kinds of ends come, and often.
  EXPECT_GT(all.completed, all.failed);
  for (const int often : {all.failed, all.aborted, all.refused, all.kills, all.pauses, all.cuts}) EXPECT_GT(often, 200);
  EXPECT_GT(all.successions, 50);
  EXPECT_GT(all.fenced, 50u);
  EXPECT_GT(all.repeated, 50u);
  EXPECT_GT(all.late, 50u);
}

TEST(Cluster, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const ClusterReport first = run_cluster({.seed = seed}), second = run_cluster({.seed = seed});
    EXPECT_EQ(first.hash, second.hash);
    EXPECT_EQ(first.virtual_ms, second.virtual_ms);
    EXPECT_EQ(first.late, second.late);
  }
}

class Sabotaged : public ::testing::TestWithParam<Sabotage> {};

TEST_P(Sabotaged, IsFound) {
  int worlds = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    if (!run_cluster({.seed = seed, .sabotage = GetParam()}).faults.empty()) return;
    ++worlds;
  }
  FAIL() << "not found in " << worlds << " worlds";
}

INSTANTIATE_TEST_SUITE_P(Cluster, Sabotaged,
                         ::testing::Values(Sabotage::kLoseAbortAcks, Sabotage::kLoseAborts, Sabotage::kDropCleanup,
                                           Sabotage::kSwapChunks, Sabotage::kLoseOneChunk, Sabotage::kWrongReplica,
                                           Sabotage::kFlipByte));

}  // namespace
}  // namespace millrace::testing

int main(int argc, char** argv) {
  namespace cluster = millrace::testing;
  ::testing::InitGoogleTest(&argc, argv);
  millrace::log_init("cluster", millrace::LogLevel::kOff);
  if (argc == 3 && std::strcmp(argv[1], "--seed") == 0) {
    const uint64_t seed = std::strtoull(argv[2], nullptr, 10);
    const auto report = cluster::run_cluster({.seed = seed, .trace = true});
    cluster::print(report, seed);
    for (const std::string& fault : report.faults) fmt::print("FAULT {}\n", fault);
    return report.faults.empty() ? 0 : 1;
  }
  if (argc == 4 && std::strcmp(argv[1], "--seeds") == 0) {
    cluster::first_seed = std::strtoull(argv[2], nullptr, 10);
    cluster::last_seed = std::strtoull(argv[3], nullptr, 10);
  }
  return RUN_ALL_TESTS();
}
