// TextAnswer: the receiver of the answer to one text request. The engine calls deliver() with what the pipeline
// reports, and the class that derives from it gets that as text and sound: text deltas up to one with `finish`, which
// comes exactly once, also where the pipeline ends without one. Where the answer is spoken, the finish waits for the
// pipeline's end, behind all samples, while the last text goes on at once.
//
// Owner: shared by its maker and the request. Thread safety: one thread at a time calls, in order; begin() before that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "stages/request_event.h"

namespace millrace {

class PipelineEngine;

class TextAnswer {
 public:
  virtual ~TextAnswer() = default;
  virtual void on_text(const wire::TextDelta& delta) = 0;
  // The samples that come next, mono, at SpeechFacts::sample_rate, each in [-1, 1]; kFull: the same samples come again
  // later. Of an answer that is spoken.
  virtual SinkAnswer on_audio(std::span<const float> /*samples*/) { return SinkAnswer::kTaken; }

  // The engine's. `pipeline`: where a request whose answer is damaged is aborted; it outlives this.
  void begin(PipelineEngine& pipeline, int32_t vocabulary, bool spoken);
  SinkAnswer deliver(const RequestEvent& event);

 private:
  void end(ReqId id, const Status& status);
  void damaged(ReqId id, const Status& status);
  Status check(const wire::TextDelta& delta) const;
  SinkAnswer take_audio(ReqId id, const RequestEvent::ValueChunk& chunk);
  void hold_finish(const wire::TextDelta& delta);

  PipelineEngine* pipeline_ = nullptr;
  int32_t vocabulary_ = 0;  // 0: unknown
  bool spoken_ = false;
  bool ended_ = false;
  std::optional<wire::TextDelta> last_;  // with the finish, until the sound has ended too
};

}  // namespace millrace
