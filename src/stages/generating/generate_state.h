// The requests of the worker `generate`: those that the scheduler has, and those that wait for something before that.
// Owner: the worker. Thread safety: none; records.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "payload/value.h"
#include "scheduler/new_sequence.h"
#include "stages/generating/state_json.h"
#include "stages/generating/token_text.h"
#include "wire/messages.h"

namespace millrace {

// What the worker knows of a request, beside what the scheduler knows.
struct GenerateState {
  Value rest;                                   // of the payload
  Value options;                                // for the stage that makes text of the ids; null: the defaults
  bool typed = false;                           // it came as tokens, and goes as deltas alone: no result repeats them
  std::optional<TokenText> stops;               // where its text may end it
  bool continues_text = false;                  // the prompt has some
  std::vector<int32_t> ids;                     // all so far, for the result
  std::shared_ptr<const RowCapture> embedding;  // null: its answer is text
  std::vector<wire::TokenDelta> unsent;         // while the receiver is behind: joined, but for changes of the weights
};

// A request whose grammar is being compiled, whose pictures are being encoded or whose pages are on their way from
// another server. The scheduler does not know it yet.
struct PreparingState {
  wire::TokenizedRequest request;
  GenerateState state;
  PreparedParts parts;
  int64_t since_ms = 0;  // that it waits
  int64_t asked_ms = 0;  // when another server was asked for its pages; 0: none was
  bool compiles = false;
  bool encodes = false;

  bool ready() const { return !compiles && !encodes; }
  // For operators.
  PreparingRequest describe(int64_t now_ms, const char* waits_for) const {
    return {request.id, waits_for, static_cast<int32_t>(request.prompt.size()), request.priority,
            static_cast<double>(now_ms - since_ms) * 1e-3};
  }
};

}  // namespace millrace
