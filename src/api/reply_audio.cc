// Reply's part about answers that are spoken.
#include "api/audio_output.h"
#include "api/reply.h"

namespace millrace::api {

SinkAnswer Reply::on_audio(std::size_t index, std::span<const float> samples) {
  std::lock_guard lock(mutex_);
  Choice& choice = choices_[index];
  if (ended_ || choice.state.finish || samples.empty()) return SinkAnswer::kTaken;
  const bool sent = options_.stream && !options_.retained;
  if (sent && responder_->pending_bytes() > kMaxUnsentAudioBytes && !responder_->disconnected()) {
    return SinkAnswer::kFull;
  }
  if (Status status = take_audio(choice, samples); !status.ok()) {
    fail(choice, {.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()});
  }
  return SinkAnswer::kTaken;
}

Status Reply::take_audio(Choice& choice, std::span<const float> samples) {
  if (!options_.stream || options_.retained) {
    RETURN_IF_ERROR(state_->answers.add(held_, samples.size_bytes()));
    choice.state.samples.insert(choice.state.samples.end(), samples.begin(), samples.end());
    return ok_status();
  }
  std::string out;
  if (!started_) begin_stream(out);
  EventWriter events(out, members(choice));
  RETURN_IF_ERROR(format_->audio(samples, events));
  responder_->write(out);
  return ok_status();
}

}  // namespace millrace::api
