#include "api/realtime/input_audio.h"

#include <algorithm>

#include "api/realtime/limits.h"
#include "media/audio_writer.h"

namespace millrace::api {
namespace {

constexpr int64_t kSamplesPerMs = kRealtimeRate / 1000;
constexpr int64_t kMaxInputSamples = kMaxInputSeconds * kRealtimeRate;

Result<std::vector<int16_t>> samples_of(std::string_view bytes, const std::string& where) {
  if (bytes.size() % 2 != 0) {
    return invalid_argument("{} has {} bytes; wanted an even number: samples of 16 bits", where, bytes.size());
  }
  std::vector<int16_t> out(bytes.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto low = static_cast<unsigned char>(bytes[2 * i]), high = static_cast<unsigned char>(bytes[2 * i + 1]);
    out[i] = static_cast<int16_t>(static_cast<uint16_t>(low | high << 8));
  }
  return out;
}

Result<std::string> encode(std::span<const int16_t> samples) {
  std::vector<float> floats(samples.size());
  std::transform(samples.begin(), samples.end(), floats.begin(),
                 [](int16_t sample) { return static_cast<float>(sample) / 32768; });
  return encode_audio(floats, kRealtimeRate, AudioFormat::kWav);
}

}  // namespace

Result<std::string> wav_of(std::string_view pcm, const std::string& where) {
  ASSIGN_OR_RETURN(const std::vector<int16_t> samples, samples_of(pcm, where));
  if (samples.empty()) return invalid_argument("{} has 0 samples; wanted some", where);
  return encode(samples);
}

Status InputAudio::append(std::string_view bytes, std::vector<Event>& events) {
  ASSIGN_OR_RETURN(const std::vector<int16_t> samples, samples_of(bytes, "audio"));
  const int64_t wanted = static_cast<int64_t>(samples_.size() + samples.size());
  if (wanted > kMaxInputSamples) {
    return error(StatusCode::kTooLarge,
                 "audio has {} samples behind {} in the buffer; wanted at most {} s ({} samples) of both: commit or "
                 "clear the buffer",
                 samples.size(), samples_.size(), kMaxInputSeconds, kMaxInputSamples);
  }
  samples_.insert(samples_.end(), samples.begin(), samples.end());
  if (!detector_) return ok_status();
  for (const TurnDetector::Change& change : detector_->push(samples)) apply(change, events);
  // The frames that may prove to be the beginning of a turn stay, with its padding.
  constexpr int64_t kUndecided = (TurnDetector::kLoudFrames + 1) * TurnDetector::kFrameMs * kSamplesPerMs;
  if (!detector_->speaks()) drop_before(end() - padding_ - kUndecided);
  return ok_status();
}

void InputAudio::apply(const TurnDetector::Change& change, std::vector<Event>& events) {
  CHECK(detector_ && change.sample >= 0);
  const int64_t sample = origin_ + change.sample;
  if (change.speaks) {
    drop_before(sample - padding_);
    events.push_back({true, begin_ / kSamplesPerMs, ""});
    return;
  }
  const auto length = static_cast<std::size_t>(std::clamp<int64_t>(sample - begin_, 0, end() - begin_));
  Event event{false, sample / kSamplesPerMs, ""};
  if (auto wav = encode(std::span(samples_).first(length)); wav.ok()) event.wav = *std::move(wav);
  events.push_back(std::move(event));
  drop_before(sample);
}

void InputAudio::drop_before(int64_t sample) {
  const int64_t count = std::clamp<int64_t>(sample - begin_, 0, static_cast<int64_t>(samples_.size()));
  samples_.erase(samples_.begin(), samples_.begin() + count);
  begin_ += count;
  CHECK(begin_ <= end());
}

Result<std::string> InputAudio::commit() {
  const int64_t ms = static_cast<int64_t>(samples_.size()) / kSamplesPerMs;
  if (ms < kMinCommitMs) {
    return invalid_argument("the buffer has {} ms of audio; wanted at least {} ms", ms, kMinCommitMs);
  }
  ASSIGN_OR_RETURN(std::string wav, encode(samples_));
  clear();
  return wav;
}

void InputAudio::clear() {
  begin_ = end();
  std::vector<int16_t>().swap(samples_);
  if (detector_) detector_->end_turn();
}

void InputAudio::detect(const std::optional<TurnDetection>& detection) {
  detector_.reset();
  if (!detection) return;
  CHECK(detection->prefix_padding_ms >= 0 && detection->silence_duration_ms > 0);
  detector_.emplace(kRealtimeRate, detection->threshold, detection->silence_duration_ms);
  padding_ = detection->prefix_padding_ms * kSamplesPerMs;
  origin_ = end();
}

}  // namespace millrace::api
