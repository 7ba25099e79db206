// The detokenizer stage: token deltas in, text deltas out, stop strings and stop patterns matched on the way.
//
// One state per live request, made by the delta that carries `start`, dropped with the request's finish. Where a stop
// string or pattern matches, the stage ends the request itself: the tokens and logprobs up to the token that completed
// the match are passed on, nothing after them. What the scheduler still sends for it is ignored, and the front tells
// the scheduler to stop. StageStatus and AdminReply messages pass through unchanged, so the front hears everyone in one
// inbox.
//
// Few messages: tokens that make no text yet wait for the next delta of their request that has text, logprobs or the
// end, or until they are kMaxHeldTokens. A delta's tokens are all of one weight version.
//
// Several schedulers may feed one detokenizer. Each batch says which one (TokenBatch::source, StageStatus::replica);
// when a scheduler comes back with a new incarnation, the requests of that one are forgotten and no others.
//
// Memory for each request: kMaxHeldTokens tokens and what TokenText holds.
// Thread safety: see stages/stage.h. Works on its own memory only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "stages/generating/token_text.h"
#include "stages/generating/workers.h"
#include "stages/stage.h"
#include "text/tokenizer.h"

namespace millrace {

inline constexpr std::size_t kMaxDetokenizerStates = 65536;

inline constexpr std::size_t kMaxSchedulers = 256;  // that feed one detokenizer

class DetokenizerStage : public Stage {
 public:
  DetokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Inbox> inbox,
                   std::shared_ptr<Outbox> front, uint64_t incarnation);
  void run() override;

  // One step of the loop, for tests: the deltas of one batch as text.
  wire::TextBatch translate(wire::TokenBatch batch);
  std::size_t live_requests() const { return states_.size(); }

 private:
  struct State {
    TokenText text;
    uint32_t source = 0;   // the scheduler that has the request
    wire::TextDelta held;  // tokens without text so far, their weight version, the usage after them
  };

  void translate(wire::TokenDelta& delta, uint32_t source, wire::TextBatch& text);
  std::optional<wire::TextDelta> open(const wire::TokenDelta& delta, uint32_t source);
  void without_state(wire::TokenDelta& delta, wire::TextBatch& text);
  std::size_t feed(wire::TextDelta& out, State& state, const wire::TokenDelta& delta);
  void send_text(wire::TextBatch text);
  void hear_scheduler(const wire::StageStatus& status);
  void heartbeat();

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Inbox> inbox_;
  PatientOutbox front_;
  const uint64_t incarnation_;
  std::unordered_map<ReqId, State> states_;
  uint64_t batches_ = 0;
  uint64_t tokens_ = 0;
  uint64_t text_stops_ = 0;                            // requests that a stop string or pattern ended
  std::unordered_map<uint32_t, uint64_t> schedulers_;  // the incarnation of each replica that feeds us
};

}  // namespace millrace
