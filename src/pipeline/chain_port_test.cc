// How a range finds the next one, and when the first one is notified that another range is gone.
#include "pipeline/chain_port.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace millrace {
namespace {

constexpr std::string_view kYaml = R"(stages:
  - {name: generate, worker: generate, layers: [0, 2], layers_to: upper, next: text, stream_to: text}
  - {name: upper, worker: layers, layers: [2, 4], layers_to: top}
  - {name: top, worker: layers, layers: [4, 6]}
  - {name: text, worker: detokenize, terminal: true}
)";

Library library() {
  Library out;
  for (const char* name : {"generate", "layers", "detokenize"}) out.workers[name] = {};  // known by its name
  return out;
}

class ChainPortTest : public testing::Test {
 protected:
  void SetUp() override {
    spec_ = parse_pipeline(kYaml, "p.yaml", library()).value();
    network_ = PipelineNetwork::make(spec_, "/tmp", "", true).value();
    for (const char* stage : {"generate", "upper", "top"}) {
      ports_.push_back(ChainPort::make(*network_, spec_, {stage, 0}, 1).value());
      peers_.push_back({.stage = stage, .incarnation = 1, .pid = 1});
      peers_.back().direct_endpoint = ports_.back()->endpoint();
      slots_.push_back(ChainPort::slot(ports_.back()));
      links_.push_back(slots_.back()->open().value());
    }
    links_[0].peers->on_lost([this](uint32_t range, const std::string& how, bool final) {
      EXPECT_FALSE(final);
      lost_.push_back(fmt::format("{} {}", range, how));
    });
  }
  void publish() {
    for (const auto& port : ports_) port->on_peers({.peers = peers_});
  }
  Status send(std::size_t from) {
    wire::Message message = wire::LayerAlive{static_cast<uint32_t>(from)};
    return links_[from].next->send(message);
  }
  std::optional<uint32_t> receive(std::size_t at) {
    const auto message = links_[at].inbox->receive(0);
    return message ? std::optional(std::get<wire::LayerAlive>(*message).stage_from) : std::nullopt;
  }

  PipelineSpec spec_;
  std::unique_ptr<PipelineNetwork> network_;
  std::vector<std::shared_ptr<ChainPort>> ports_;
  std::vector<std::shared_ptr<const ChainSlot>> slots_;
  std::vector<wire::Peer> peers_;
  std::vector<ChainLinks> links_;
  std::vector<std::string> lost_;
};

TEST_F(ChainPortTest, EachRangeSendsToTheNextAndTheLastToTheFirst) {
  EXPECT_EQ(send(0).message(), "stage 'upper': it is not there");
  publish();
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(send(i).ok()) << i;
    EXPECT_EQ(receive((i + 1) % 3), i);
  }
  EXPECT_EQ(slots_[1]->index, 1u);
  EXPECT_EQ(slots_[1]->ranges, (std::vector<LayerRange>{{0, 2}, {2, 4}, {4, 6}}));
  EXPECT_FALSE(slots_[1]->open().ok());  // they were taken
  EXPECT_TRUE(links_[1].peers == nullptr);
}

TEST_F(ChainPortTest, ARangeThatIsGoneOrAnotherOneIsReportedOnce) {
  publish();
  EXPECT_TRUE(lost_.empty());
  peers_[2].up = false;
  publish();
  publish();
  EXPECT_EQ(lost_, std::vector<std::string>{"2 stage 'top': it is gone"});
  EXPECT_EQ(send(1).message(), "stage 'top': it is not there");
  peers_[2].up = true;
  peers_[2].incarnation = 2;
  publish();
  EXPECT_EQ(lost_.size(), 1u);  // it was gone already
  peers_[1].incarnation = 2;
  publish();
  ASSERT_EQ(lost_.size(), 2u);
  EXPECT_EQ(lost_[1], "1 stage 'upper': it was started again");
}

// The server's own children count from 1 again when the server is started again.
TEST_F(ChainPortTest, AnotherProcessOfTheSameIncarnationIsAnotherOne) {
  publish();
  peers_[1].pid = 2;
  publish();
  EXPECT_EQ(lost_, std::vector<std::string>{"1 stage 'upper': it was started again"});
}

TEST_F(ChainPortTest, RowsGoToTheNewAddressOfTheNextRange) {
  publish();
  const auto other = ChainPort::make(*network_, spec_, {"upper", 0}, 2).value();
  const ChainLinks links = ChainPort::slot(other)->open().value();
  peers_[1].incarnation = 2;
  peers_[1].direct_endpoint = other->endpoint();
  publish();
  ASSERT_TRUE(send(0).ok());
  EXPECT_FALSE(receive(1));
  EXPECT_TRUE(links.inbox->receive(0));
}

// A first range that was frozen and replaced would begin epochs of its own in the other ranges.
TEST_F(ChainPortTest, WithoutALeaseNothingIsSentUntilTheNextTable) {
  publish();
  ports_[0]->on_lease_lost();
  EXPECT_EQ(send(0).message(), "stage 'upper': it is not there");
  EXPECT_TRUE(lost_.empty());
  peers_[2].incarnation = 2;  // meanwhile
  publish();
  EXPECT_TRUE(send(0).ok());
  EXPECT_EQ(lost_, std::vector<std::string>{"2 stage 'top': it was started again"});
}

TEST_F(ChainPortTest, NothingIsReportedAfterTheFirstRangeHasEnded) {
  publish();
  links_[0].peers.reset();
  peers_[1].up = false;
  publish();
  EXPECT_TRUE(lost_.empty());
}

// The file that the documents show.
TEST(ChainExample, TheExampleIsAChain) {
  const auto spec =
      load_pipeline(std::string(MILLRACE_SOURCE_DIR) + "/examples/pipelines/two-hosts-layers.yaml", library());
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(chain_of(*spec, *spec->find("upper")).size(), 2u);
}

}  // namespace
}  // namespace millrace
