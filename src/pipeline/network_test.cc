// How the processes of a pipeline reach each other: relays, endpoints, what others must be able to reach.
#include "pipeline/network.h"

#include <gtest/gtest.h>

#include "stages/library.h"

namespace millrace {
namespace {

Library library() {
  Library out;
  out.workers["work"] = {};  // known by its name
  return out;
}

// What clients submit goes through the pipeline's relay, so the stage that reads it needs that one too.
TEST(PipelineNetwork, ThePipelinesRelayIsLoadedWhereEveryStageNamesAnother) {
  constexpr std::string_view kYaml = R"(relay: tcp
stages:
  - {name: a, worker: work, next: b, relay: auto}
  - {name: b, worker: work, terminal: true, relay: auto}
)";
  const auto spec = parse_pipeline(kYaml, "p.yaml", library());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto network = PipelineNetwork::make(*spec, "/tmp", "");
  ASSERT_TRUE(network.ok()) << network.status().message();
  for (const auto& relays : {(*network)->relays(spec->stages[0].relay), (*network)->coordinator_relays(spec->relay)}) {
    ASSERT_TRUE(relays.ok()) << relays.status().message();
    EXPECT_TRUE(relays->contains("tcp"));
  }
}

TEST(PipelineNetwork, TheCoordinatorHasTheRelaysOfItsEdgesAlone) {
  const auto has_tcp = [](const char* of_a, const char* of_b) {
    const std::string yaml = fmt::format(
        "stages:\n"
        "  - {{name: a, worker: work, next: b, relay: {}}}\n"
        "  - {{name: b, worker: work, terminal: true, relay: {}}}\n",
        of_a, of_b);
    const auto spec = parse_pipeline(yaml, "p.yaml", library()).value();
    const auto network = PipelineNetwork::make(spec, "/tmp", "").value();
    EXPECT_TRUE(network->relays(spec.stages[1].relay).value().contains("tcp"));
    return network->coordinator_relays(spec.relay).value().contains("tcp");
  };
  EXPECT_FALSE(has_tcp("tcp", "auto")) << "an edge between two stages";
  EXPECT_TRUE(has_tcp("auto", "tcp")) << "the answers";
}

// --listen and --join stand instead of the file's control: they are held to the same.
TEST(PipelineNetwork, OthersMustBeAbleToComeHere) {
  constexpr std::string_view kYaml = R"(control: "tcp://127.0.0.1:30100"
stages:
  - {name: a, worker: work, next: b}
  - {name: b, worker: work, terminal: true, host: far}
)";
  auto spec = parse_pipeline(kYaml, "p.yaml", library());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_TRUE(PipelineNetwork::make(*spec, "/tmp", "").ok());
  EXPECT_TRUE(PipelineNetwork::make(*spec, "/tmp", "[::1]").ok());
  const auto refused = [&spec](const std::string& control, const std::string& listen) {
    PipelineSpec other = *spec;
    override_hosts(other, control, "");
    const auto network = PipelineNetwork::make(other, "/tmp", listen);
    return network.ok() ? "" : network.status().message();
  };
  for (const char* control : {"0.0.0.0:30100", "*:30100", "[::]:30100", "127.0.0.1:0", "ipc:///tmp/x.sock"}) {
    EXPECT_EQ(refused(control, "").find("control: endpoint '"), 0u) << control << ": " << refused(control, "");
  }
  for (const char* far : {"10.0.0.1:30100", "[fd00::2]:30100"}) {
    EXPECT_NE(refused(far, "").find("--key-file"), std::string::npos) << refused(far, "");
    EXPECT_EQ(refused(far, "").find(":0 "), std::string::npos);
  }
  EXPECT_NE(refused("", "10.0.0.2").find("10.0.0.2 is reached by other machines"), std::string::npos);
  for (const char* listen : {"0.0.0.0", "*", "[::]", "127.0.0.1:5"}) {
    EXPECT_EQ(refused("", listen).find("--listen: endpoint '"), 0u) << listen << ": " << refused("", listen);
  }
}

// Where there are no child processes, messages between the coordinator and the stages move and are not encoded.
TEST(PipelineNetwork, MessagesOfOneProcessMove) {
  constexpr std::string_view kYaml = "stages:\n  - {name: a, worker: work, terminal: true}\n";
  const auto spec = parse_pipeline(kYaml, "p.yaml", library());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto network = std::move(PipelineNetwork::make(*spec, "/nowhere", "", true)).value();
  const auto coordinator = std::move(network->bind_coordinator()).value();
  const auto stage = std::move(network->bind_stage("a", 0, 1)).value();
  EXPECT_EQ(coordinator->endpoint().find("inproc://"), 0u);
  EXPECT_EQ(stage->endpoint().find("inproc://"), 0u);
  wire::ChunkBatch batch;
  batch.chunks.push_back({.id = ReqId{1}, .body = wire::TextDelta{.text = "word"}});
  const wire::Chunk* chunks = batch.chunks.data();
  wire::Message message = std::move(batch);
  ASSERT_TRUE((*network->connect_coordinator())->send(message).ok());
  EXPECT_EQ(std::get<wire::ChunkBatch>(*coordinator->receive(0)).chunks.data(), chunks);
  message = wire::AbortRequest{ReqId{1}};
  ASSERT_TRUE((*network->connect(stage->endpoint()))->send(message).ok());
  EXPECT_TRUE(stage->receive(0).has_value());
}

}  // namespace
}  // namespace millrace
