// RecordedEmit: an Emit that records what a worker emits. For tests of workers without a loop.
// Thread safety: one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "stages/worker.h"

namespace millrace::testing {

struct RecordedEmit : Emit {
  struct Outputs {
    std::vector<Value> chunks;
    std::vector<std::pair<std::string, std::string>> addresses;  // target and modality of each; "*": to all
    std::vector<wire::TokenDelta> tokens;
    std::vector<wire::TextDelta> texts;
    std::vector<Value> results;
    std::vector<Status> failures;
  };
  void chunk(ReqId id, Value value) override { add(id, "*", std::move(value), ""); }
  void chunk_to(ReqId id, const std::string& target, Value value, const std::string& modality) override {
    add(id, target, std::move(value), modality);
  }
  void tokens(ReqId id, wire::TokenDelta delta) override { of[id.value].tokens.push_back(std::move(delta)); }
  void text(ReqId id, wire::TextDelta delta) override { of[id.value].texts.push_back(std::move(delta)); }
  bool congested(ReqId id) const override { return full.contains(id.value); }
  void result(ReqId id, Value value) override { of[id.value].results.push_back(std::move(value)); }
  void fail(ReqId id, Status status) override { of[id.value].failures.push_back(std::move(status)); }
  void reply(uint64_t command, const Result<std::string>& reply, wire::WeightsReply weights) override {
    replies.emplace_back(command, reply);
    weights_replies.push_back(weights);
  }

  std::map<uint64_t, Outputs> of;
  std::set<uint64_t> full;
  std::vector<std::pair<uint64_t, Result<std::string>>> replies;  // to admin commands
  std::vector<wire::WeightsReply> weights_replies;                // with each of them

 private:
  void add(ReqId id, const std::string& target, Value value, const std::string& modality) {
    of[id.value].chunks.push_back(std::move(value));
    of[id.value].addresses.emplace_back(target, modality);
  }
};

}  // namespace millrace::testing
