// Reply's part about answers that are spoken.
#include "api/audio_output.h"
#include "api/reply.h"

namespace millrace::api {

SinkAnswer Reply::on_audio(Choice& choice, std::span<const float> samples) {
  std::lock_guard lock(mutex_);
  if (ended_ || choice.state.finish || samples.empty()) return SinkAnswer::kTaken;
  const bool sent = options_.stream && !options_.retained;
  if (sent && is_full(samples.size())) return SinkAnswer::kFull;
  if (Status status = take_audio(choice, samples); !status.ok()) {
    fail(choice, {.reason = wire::FinishReason::kError, .code = status.code(), .message = status.message()});
  }
  return SinkAnswer::kTaken;
}

// One chunk of any size is sent where nothing waits: it could never be sent otherwise, and http has a limit of its own
// for what waits behind another.
bool Reply::is_full(std::size_t samples) const {
  const std::size_t unsent = responder_->pending_bytes();
  const std::size_t bytes = samples * 2 * 4 / 3;  // of 16 bits each, as base64
  return unsent > 0 && unsent + bytes > kMaxUnsentAudioBytes && !responder_->disconnected();
}

Status Reply::take_audio(Choice& choice, std::span<const float> samples) {
  if (!options_.stream || options_.retained) {
    RETURN_IF_ERROR(memory_->add(samples.size_bytes()));
    choice.state.samples.insert(choice.state.samples.end(), samples.begin(), samples.end());
    return ok_status();
  }
  std::string out;
  if (!started_) begin_stream(out);
  EventWriter events(out, members(choice), format_->stream_form());
  RETURN_IF_ERROR(format_->audio(samples, events));
  responder_->write(out);
  return ok_status();
}

}  // namespace millrace::api
