// Pipelines over processes and hosts: what cannot work there is reported when the file is read.
#include <gtest/gtest.h>

#include "pipeline/spec.h"

namespace millrace {
namespace {

Library library() {
  Library out;
  out.workers["work"] = [](const Value&, const Library::WorkerSlot&) {
    return Result<std::unique_ptr<Worker>>(nullptr);
  };
  return out;
}

// All errors of the file, a line each; empty: it is good.
std::string complaint(const std::string& yaml) {
  const auto spec = parse_pipeline(yaml, "p.yaml", library());
  return spec.ok() ? "" : spec.status().message();
}

// Two stages, each with more of its keys.
std::string two(const std::string& pipeline, const std::string& a, const std::string& b) {
  return pipeline + "stages:\n  - {name: a, worker: work, next: b" + a +
         "}\n  - {name: b, worker: work, terminal: true" + b + "}\n";
}

constexpr const char* kControl = "control: \"tcp://127.0.0.1:30100\"\n";

TEST(PipelineLayout, ATerminalsRelayMustReachTheCoordinator) {
  const std::string local = ", process: p, relay: local";
  EXPECT_EQ(
      complaint(two("", local, ", process: p, relay: local")),
      "p.yaml:3: relay of stage 'b' is 'local', and the coordinator, which gets its result, is in another process; "
      "wanted 'auto' or one that goes there");
  EXPECT_EQ(complaint(two("", local, ", process: p")), "");
  EXPECT_EQ(complaint(two("", "", ", process: front, relay: local")), "");
  EXPECT_EQ(complaint(two("", "", ", process: front, replicas: 2, relay: local")), "");  // threads of one process
  EXPECT_NE(complaint(two(kControl, "", ", host: far, relay: shm"))
                .find("and the coordinator, which gets its result, is in "
                      "another host"),
            std::string::npos);
  EXPECT_EQ(complaint(two(kControl, "", ", host: far, relay: tcp")), "");
  EXPECT_EQ(complaint(two("", "", ", relay: shm")), "");
}

TEST(PipelineLayout, ThePipelinesRelayMustReachTheEntry) {
  const std::string relay_auto = ", relay: auto";
  EXPECT_EQ(complaint(two("relay: local\n", relay_auto, relay_auto)),
            "p.yaml:1: relay of the pipeline is 'local', and the entry 'a', which gets what clients submit, is in "
            "another process; wanted 'auto' or one that goes there");
  EXPECT_EQ(complaint(two("relay: local\n", ", process: front" + relay_auto, relay_auto)), "");
  EXPECT_NE(complaint(two(std::string(kControl) + "relay: shm\n", ", host: far" + relay_auto, relay_auto))
                .find("is in another host"),
            std::string::npos);
  EXPECT_EQ(complaint(two("relay: shm\n", relay_auto, relay_auto)), "");
}

TEST(PipelineLayout, ThePipelinesRelayIsARelayEvenWhereNoStageTakesIt) {
  const std::string relay_auto = ", relay: auto";
  EXPECT_EQ(complaint(two("relay: udp\n", relay_auto, relay_auto))
                .find("p.yaml:1: relay of the pipeline is 'udp'; wanted one of auto, "),
            0u);
}

TEST(PipelineLayout, ControlIsWhereOtherHostsCanCome) {
  for (const char* where : {"banana", "10.0.0.1:30100", "ipc:///tmp/x.sock", "tcp://*:30100", "tcp://0.0.0.0:30100",
                            "tcp://[::]:30100", "tcp://10.0.0.1:0", "tcp://10.0.0.1:65535"}) {
    for (const char* host : {"", ", host: far"}) {
      const std::string message = complaint(two("name: n\ncontrol: \"" + std::string(where) + "\"\n", "", host));
      EXPECT_EQ(message.find("p.yaml:2: control of the pipeline: endpoint '" + std::string(where) + "': "), 0u)
          << message;
      EXPECT_NE(message.find("; wanted "), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
  // Beyond loopback it takes a key, which may be an option of the command line.
  EXPECT_EQ(complaint(two("control: \"tcp://10.0.0.1:30100\"\n", "", ", host: far")), "");
}

TEST(PipelineLayout, TheCoordinatorIsOnThisHost) {
  EXPECT_EQ(
      complaint(two(kControl, "", ", host: far, process: front")),
      "p.yaml:4: stage 'b' is on host 'far' and in the process 'front', which is the coordinator's; wanted another "
      "process");
}

// Every stage gets a table of all.
TEST(PipelineLayout, NotMoreStagesThanATableHolds) {
  const auto many = [](int stages, int replicas) {
    std::string yaml = "stages:\n  - {name: a, worker: work, next: [";
    for (int i = 0; i < stages; ++i) yaml += (i == 0 ? "s" : ", s") + std::to_string(i);
    yaml += "]}\n";
    for (int i = 0; i < stages; ++i) {
      yaml += "  - {name: s" + std::to_string(i) +
              ", worker: work, terminal: true, replicas: " + std::to_string(replicas) + "}\n";
    }
    return complaint(yaml);
  };
  EXPECT_EQ(many(16, 63), "");
  EXPECT_EQ(many(62, 16), "");
  EXPECT_EQ(many(16, 64),
            "p.yaml:1: stages are 1025, replicas counted; wanted at most 1023, so that a table of peers holds them");
}

}  // namespace
}  // namespace millrace
