// TransferPort: a stage's connection to the replicas of another one, for KV pages or features of media: of a stage
// `generate` to those that compute prompts or encode media for it (prefill_from, encode_from), and of these to those
// that they work for. It has an inbox beside
// the stage's own, whose endpoint travels with the registration, and connects to the endpoints that the last table of
// peers has, and to no others.
//
//   stage loop --on_peers(table)--> TransferPort --TransferPeers--> TransferService
//
// Owner: StageHost, and the links that take_links() gave. Thread safety: on_peers() on the stage loop's thread,
// take_links() on any, once.
#pragma once

#include <memory>
#include <string>

#include "pipeline/network.h"
#include "pipeline/spec.h"
#include "stages/library.h"

namespace millrace {

// The stage at the other end of the transfers of `stage`; nullptr: it has none. Of a spec that was checked.
const StageSpec* transfers_with(const PipelineSpec& spec, const StageSpec& stage);
// The same of features.
const StageSpec* encodes_with(const PipelineSpec& spec, const StageSpec& stage);

class TransferPort {
 public:
  // Of the replica `self` of a stage, to the stage `other`; its relays carry the bytes of pages. `network` must outlive
  // it and its links. Errors: those of binding.
  static Result<std::shared_ptr<TransferPort>> make(PipelineNetwork& network, const PipelineSpec& spec,
                                                    const StageSpec& other, wire::Peer self, loop::Relays relays);

  const std::string& endpoint() const { return endpoint_; }
  void on_peers(const wire::Peers& table);
  // What the worker of the stage gets.
  static OpenTransferLinks slot(const std::shared_ptr<TransferPort>& port);

 private:
  TransferPort(PipelineNetwork& network, std::string other, std::shared_ptr<transfer::TransferPeers> peers)
      : network_(network), other_(std::move(other)), peers_(std::move(peers)) {}
  Result<transfer::TransferLinks> take_links();

  PipelineNetwork& network_;
  const std::string other_;  // the stage at the other end
  const std::shared_ptr<transfer::TransferPeers> peers_;
  transfer::TransferLinks links_;  // until take_links()
  std::string endpoint_;
};

}  // namespace millrace
