// TurnDetector: where speech begins and ends in a stream of samples, by the energy of frames of 20 ms.
//
// A frame is loud where the root of the mean square of its samples, less their mean, is over a level. Speech begins
// with kLoudFrames loud frames in a row, at the first of them, so a click begins nothing; it ends when frames of
// `silence_ms` in a row are not loud. The result does not depend on how the samples are cut into calls.
//
// Owner: a session's InputAudio. Thread safety: under the session's lock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::api {

// The level of a threshold in [0, 1], of full scale: from -60 dB to -20 dB; 0.5, the usual one, is -40 dB.
double loud_level(double threshold);

class TurnDetector {
 public:
  static constexpr int kFrameMs = 20;
  static constexpr int kLoudFrames = 3;

  struct Change {
    bool speaks = false;  // it begins; false: it ends
    int64_t sample = 0;   // of the stream: the first one of the speech, or the first one behind it and its silence
  };

  TurnDetector(int rate, double threshold, int64_t silence_ms);

  std::vector<Change> push(std::span<const int16_t> samples);
  bool speaks() const { return speaks_; }
  // The turn is over for another reason; the stream goes on.
  void end_turn();

 private:
  bool is_loud() const;

  const std::size_t frame_size_;
  const double level_;
  const int64_t quiet_frames_;  // that end a turn
  std::vector<int16_t> frame_;  // the samples of the frame under way
  int64_t frames_ = 0;          // complete ones, so far
  int64_t run_ = 0;             // of frames in a row that speak for a change
  bool speaks_ = false;
};

}  // namespace millrace::api
