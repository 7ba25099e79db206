// Which replicas are connected for KV pages, as the tables of peers come.
#include "pipeline/transfer_port.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

constexpr std::string_view kYaml = R"(stages:
  - {name: generate, worker: generate, prefill_from: prompts, next: text, stream_to: text, replicas: 2}
  - {name: prompts, worker: prefill, replicas: 3}
  - {name: text, worker: detokenize, terminal: true}
)";

Library library() {
  Library out;
  for (const char* name : {"generate", "prefill", "detokenize"}) out.workers[name] = {};  // known by its name
  return out;
}

class TransferPortTest : public testing::Test {
 protected:
  struct End {
    std::shared_ptr<TransferPort> port;
    transfer::TransferLinks links;
  };
  void SetUp() override {
    spec_ = parse_pipeline(kYaml, "p.yaml", library()).value();
    network_ = PipelineNetwork::make(spec_, "/tmp", "", true).value();
    generate_ = end("generate", 1);
    prompts_ = end("prompts", 2);
    table_.peers = {{.stage = "generate", .replica = 1, .incarnation = 1},
                    {.stage = "prompts", .replica = 2, .incarnation = 4}};
    table_.peers[0].direct_endpoint = generate_.links.endpoint;
    table_.peers[1].direct_endpoint = prompts_.links.endpoint;
    table_.peers[1].serves = true;
  }
  End end(const std::string& stage, uint32_t replica) {
    const loop::Relays relays = network_->relays({}).value();
    End out{.port = TransferPort::make(*network_, spec_, *transfers_with(spec_, *spec_.find(stage)),
                                       network_->self(stage, replica, 1), relays)
                        .value(),
            .links = {}};
    out.links = TransferPort::slot(out.port)().value();
    return out;
  }
  void publish() {
    generate_.port->on_peers(table_);
    prompts_.port->on_peers(table_);
  }
  static std::size_t known(const End& end) {
    const auto replicas = end.links.peers->replicas();
    return static_cast<std::size_t>(
        std::count_if(replicas.begin(), replicas.end(), [](const auto& one) { return !one.endpoint.empty(); }));
  }

  PipelineSpec spec_;
  std::unique_ptr<PipelineNetwork> network_;
  End generate_, prompts_;
  wire::Peers table_;
};

TEST_F(TransferPortTest, EachStageKnowsTheReplicasOfTheOther) {
  EXPECT_EQ(transfers_with(spec_, *spec_.find("generate")), spec_.find("prompts"));
  EXPECT_EQ(transfers_with(spec_, *spec_.find("prompts")), spec_.find("generate"));
  EXPECT_EQ(transfers_with(spec_, *spec_.find("text")), nullptr);
  EXPECT_TRUE(generate_.links.peers->compute());
  EXPECT_EQ(generate_.links.peers->count(), 3u);
  EXPECT_FALSE(prompts_.links.peers->compute());
  EXPECT_EQ(prompts_.links.peers->count(), 2u);
  EXPECT_EQ(generate_.links.peers->version(), 0u);
  publish();
  EXPECT_EQ(generate_.links.peers->replicas()[2], (transfer::TransferPeers::Replica{prompts_.links.endpoint, 4}));
  EXPECT_EQ(known(generate_), 1u);
  EXPECT_EQ(known(prompts_), 1u);
  EXPECT_FALSE(TransferPort::slot(generate_.port)().ok()) << "the links were taken";
}

TEST_F(TransferPortTest, MessagesGoToReplicasOfTheTableAlone) {
  EXPECT_EQ(generate_.links.connect(prompts_.links.endpoint).status().code(), StatusCode::kInvalidArgument);
  publish();
  auto outbox = generate_.links.connect(prompts_.links.endpoint);
  ASSERT_TRUE(outbox.ok()) << outbox.status().message();
  wire::Message message = wire::KvEnd{{"xfer-a"}, {}};
  ASSERT_TRUE((*outbox)->send(message).ok());
  const auto received = prompts_.links.inbox->receive(0);
  ASSERT_TRUE(received);
  EXPECT_EQ(std::get<wire::KvEnd>(*received).id.text, "xfer-a");
  EXPECT_FALSE(generate_.links.connect("inproc://elsewhere").ok());
  EXPECT_FALSE(generate_.links.connect("").ok());
}

TEST_F(TransferPortTest, OneThatDoesNotServeIsNotAskedAndStillGetsPages) {
  publish();
  const uint64_t version = generate_.links.peers->version();
  publish();
  EXPECT_EQ(generate_.links.peers->version(), version) << "the same table again";
  table_.peers[1].serves = false;
  publish();
  EXPECT_EQ(known(generate_), 0u);
  EXPECT_EQ(known(prompts_), 1u) << "the one that generates need not serve to take pages";
  EXPECT_GT(generate_.links.peers->version(), version);
  table_.peers[0].up = false;
  publish();
  EXPECT_EQ(known(prompts_), 0u);
}

}  // namespace
}  // namespace millrace
