// ChainPort: a stage's connection to the other ranges of its chain, where a pipeline's stages hold the layers of one
// model. It has an inbox for rows beside the stage's own, whose endpoint travels with the registration, and an outbox
// to the next range, at the endpoint that the last table of peers has. A range that leaves the table, or comes back as
// another incarnation, has lost its KV: the first range is notified.
//
//   stage loop --on_peers(table)--> ChainPort --lost--> ChainRunner
//   ChainRunner, RangeServer --send--> `next` --> inbox of the next range
//
// Owner: StageHost, and the links that take_links() gave. Thread safety: on_peers() on the stage loop's thread,
// take_links() on any, once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pipeline/chain_spec.h"
#include "pipeline/network.h"
#include "runner/chain_links.h"
#include "stages/library.h"

namespace millrace {

class ChainPort {
 public:
  // Of the range that this replica of `stage` has; chain i consists of replica i of each stage. `network` must outlive
  // it and its links. Errors: those of binding.
  static Result<std::shared_ptr<ChainPort>> make(PipelineNetwork& network, const PipelineSpec& spec,
                                                 const StageReplica& stage, uint64_t incarnation);

  const std::string& endpoint() const { return endpoint_; }
  void on_peers(const wire::Peers& table);
  // Another process may have this range's slot: nothing is sent until the next table.
  void on_lease_lost();
  // What the worker of the stage gets.
  static std::shared_ptr<const ChainSlot> slot(const std::shared_ptr<ChainPort>& port);

 private:
  struct State;  // shared with the links: they may outlive the port
  ChainPort() = default;
  Result<ChainLinks> take_links();

  std::shared_ptr<State> state_;
  std::unique_ptr<Inbox> inbox_;  // until take_links()
  std::string endpoint_;
  std::vector<LayerRange> ranges_;
  uint32_t index_ = 0;
};

}  // namespace millrace
