// The detokenizer stage: token deltas in, text deltas out, stop strings matched on the way.
//
// One state per live request, made by the delta that carries `start`, dropped with the request's finish. Where a stop
// string matches, the stage ends the request itself; what the scheduler still sends for it is ignored, and the front
// tells the scheduler to stop. StageStatus messages from the scheduler pass through unchanged, so the front hears
// everyone in one inbox.
//
// Thread safety: see stages/stage.h. Works on its own memory only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "stages/stage.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace millrace {

inline constexpr std::size_t kMaxDetokenizerStates = 65536;

class DetokenizerStage : public Stage {
 public:
  DetokenizerStage(std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Inbox> inbox,
                   std::shared_ptr<Outbox> front, uint64_t incarnation);
  void run() override;

  // One step of the loop, for tests: the deltas of one batch as text.
  wire::TextBatch translate(const wire::TokenBatch& batch);
  std::size_t live_requests() const { return states_.size(); }

 private:
  struct State {
    IncrementalDetokenizer detokenizer;
    StopStrings stops;
    std::vector<std::string> stop;  // for Finish::matched_text
    int32_t completion_tokens = 0;  // fed so far
  };

  std::optional<wire::TextDelta> translate(const wire::TokenDelta& delta);
  std::optional<wire::TextDelta> open(const wire::TokenDelta& delta);
  static void append(wire::TextDelta& out, State& state, const StopStrings::Output& output);
  void hear_scheduler(const wire::StageStatus& status);
  void heartbeat();

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Inbox> inbox_;
  PatientOutbox front_;
  const uint64_t incarnation_;
  std::unordered_map<ReqId, State> states_;
  uint64_t batches_ = 0;
  uint64_t scheduler_ = 0;  // the incarnation that feeds us
};

}  // namespace millrace
