// InputAudio: the buffer of input audio of a session, and where its turns begin and end.
//
// Without a detector it holds what was appended until it is committed or cleared. With one, what comes before a turn is
// dropped but for the padding, so a silent line holds nothing that grows.
//
// Owner: a RealtimeSession. Thread safety: under the session's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/realtime/turn_detector.h"
#include "base/status.h"

namespace millrace::api {

struct TurnDetection {
  double threshold = 0.5;
  int64_t prefix_padding_ms = 300;
  int64_t silence_duration_ms = 500;
  bool create_response = true;
  bool interrupt_response = true;

  friend bool operator==(const TurnDetection&, const TurnDetection&) = default;
};

class InputAudio {
 public:
  struct Event {
    bool speaks = false;
    int64_t ms = 0;   // since the session began: where the turn begins with its padding, or where it ends
    std::string wav;  // of a turn that ends
  };

  // Little-endian samples of 16 bits at kRealtimeRate. kInvalidArgument: half a sample; kTooLarge: the buffer would
  // hold over kMaxInputSeconds, and nothing is taken.
  Status append(std::string_view bytes, std::vector<Event>& events);
  // What the buffer holds, as a WAV; it is empty then. kInvalidArgument: less than kMinCommitMs.
  Result<std::string> commit();
  void clear();
  void detect(const std::optional<TurnDetection>& detection);
  std::size_t bytes() const { return samples_.size() * sizeof(int16_t); }
  bool speaks() const { return detector_ && detector_->speaks(); }

 private:
  void apply(const TurnDetector::Change& change, std::vector<Event>& events);
  void drop_before(int64_t sample);
  int64_t end() const { return begin_ + static_cast<int64_t>(samples_.size()); }

  std::optional<TurnDetector> detector_;
  int64_t padding_ = 0;  // samples
  int64_t origin_ = 0;   // the sample of the session that was the detector's first
  int64_t begin_ = 0;    // the sample of the session that the buffer begins with
  std::vector<int16_t> samples_;
};

// A WAV file of samples at kRealtimeRate, from the bytes of a client. kInvalidArgument: half a sample, or none.
Result<std::string> wav_of(std::string_view pcm, const std::string& where);

}  // namespace millrace::api
